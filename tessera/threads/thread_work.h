#pragma once

#include <memory>
#include <torch/csrc/distributed/c10d/Work.hpp>
#include <vector>

#include "tessera/threads/thread_hub.h"

namespace tessera::comm {

/// The handle of one posted call. wait() returns when all ranks have arrived and the data has
/// moved; for tensors on an accelerator it makes the current streams wait, not the host. Throws
/// tessera errors. May be dropped without wait(): the call still takes part.
class ThreadWork final : public c10d::Work {
 public:
  ThreadWork(std::shared_ptr<ThreadHub> hub, std::shared_ptr<Round> round, size_t seat,
             Collective what, std::vector<at::Tensor> outputs, std::chrono::milliseconds timeout);

  bool isCompleted() override;
  bool isSuccess() const override;
  std::exception_ptr exception() const override;
  int sourceRank() const override;
  std::vector<at::Tensor> result() override;
  void synchronize() override;
  bool wait(std::chrono::milliseconds timeout = kNoTimeout) override;
  void blockCurrentStream() override;
  void abort() override;
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override;
  c10::intrusive_ptr<c10::ivalue::Future> getFutureResult() override;
  uint64_t getSequencenumber() const override;

 private:
  std::shared_ptr<ThreadHub> hub_;
  std::shared_ptr<Round> round_;
  size_t seat_;
  std::vector<at::Tensor> outputs_;
  std::chrono::milliseconds timeout_;
};

}  // namespace tessera::comm
