#pragma once

#include <memory>
#include <torch/csrc/distributed/c10d/Work.hpp>

#include "tessera/collective/algorithms/algorithms.h"

/// The Work of a synchronous call: the waiting thread does the remaining work itself, which avoids
/// waking another thread.
namespace tessera::comm {

/// A Work whose wait can run periodic checks. Waiting repeatedly with short timeouts is no
/// substitute: a message whose wait timed out is lost.
class PollingWork {
 public:
  virtual ~PollingWork() = default;
  /// Waits until completion and calls `look` periodically, first after `after`; it may throw.
  virtual bool wait_looking(std::chrono::milliseconds after, std::function<void()> look) = 0;
};

class CallerWork final : public c10d::Work, public PollingWork {
 public:
  /// Keeps `owner` alive, whose connections the exchange uses. Posts the first messages.
  CallerWork(c10::intrusive_ptr<c10::intrusive_ptr_target> owner, std::unique_ptr<Algorithm> job,
             std::shared_ptr<Exchange> exchange, uint64_t sequence);
  ~CallerWork() override;

  /// An explicit timeout is final: after it the call has failed.
  bool wait(std::chrono::milliseconds timeout = kNoTimeout) override;
  bool wait_looking(std::chrono::milliseconds after, std::function<void()> look) override;

  std::vector<at::Tensor> result() override { return job_->outputs; }
  void abort() override { exchange_->cancel(); }
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override;
  uint64_t getSequencenumber() const override { return sequence_; }

 private:
  bool complete();

  c10::intrusive_ptr<c10::intrusive_ptr_target> owner_;
  std::unique_ptr<Algorithm> job_;
  std::shared_ptr<Exchange> exchange_;
  uint64_t sequence_;
  std::mutex waiting_;
};

}  // namespace tessera::comm
