#pragma once

#include <memory>
#include <mutex>
#include <torch/csrc/distributed/c10d/Work.hpp>

#include "tessera/observe/tap_context.h"

namespace tessera::comm {

/// A backend's Work that reports its end to the recorders and throws tessera's errors. Everything
/// else is forwarded.
class TapWork final : public c10d::Work {
 public:
  TapWork(c10::intrusive_ptr<c10d::Work> inner, std::shared_ptr<const TapContext> context,
          TappedCall call, std::shared_ptr<EventRecord> record);

  bool isCompleted() override;
  bool isSuccess() const override { return inner_->isSuccess(); }
  /// What wait() threw; before that, the backend's error as tessera's. Contacts no other rank.
  std::exception_ptr exception() const override;
  int sourceRank() const override { return inner_->sourceRank(); }
  std::vector<at::Tensor> result() override { return inner_->result(); }
  void synchronize() override;
  bool wait(std::chrono::milliseconds timeout = kNoTimeout) override;
  void blockCurrentStream() override { inner_->blockCurrentStream(); }
  void abort() override { inner_->abort(); }
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override;
  c10::intrusive_ptr<c10::ivalue::Future> getFutureResult() override {
    return inner_->getFutureResult();
  }
  float getDuration() const override { return inner_->getDuration(); }
  uint64_t getSequencenumber() const override { return inner_->getSequencenumber(); }

 private:
  bool wait_inner(std::chrono::milliseconds timeout);
  void look_around() const;
  void ended(bool ok) {
    if (record_) record_->finish(ok);
  }

  c10::intrusive_ptr<c10d::Work> inner_;
  std::shared_ptr<const TapContext> context_;
  TappedCall call_;
  std::shared_ptr<EventRecord> record_;  // null: no recorder
  mutable std::mutex mutex_;
  std::exception_ptr error_;  // that wait() threw
};

}  // namespace tessera::comm
