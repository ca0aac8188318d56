#pragma once

#include <memory>
#include <torch/csrc/distributed/c10d/Work.hpp>

#include "tessera/collective/algorithms.h"

/// The Work of a synchronous call: what remains to be done is done by the thread that waits, so
/// that no other has to be woken.
namespace tessera::comm {

/// A Work whose wait can look around meanwhile, which a wait in pieces cannot: a message that was
/// waited for in vain is lost.
class PatientWork {
 public:
  virtual ~PatientWork() = default;
  /// Waits until the end, and calls `look` every so often, first after `after`; it may throw.
  virtual bool wait_looking(std::chrono::milliseconds after, std::function<void()> look) = 0;
};

class CallerWork final : public c10d::Work, public PatientWork {
 public:
  /// Keeps `owner`, whose links the exchange uses. Posts the first messages.
  CallerWork(c10::intrusive_ptr<c10::intrusive_ptr_target> owner, std::unique_ptr<Algorithm> job,
             std::shared_ptr<Exchange> exchange, uint64_t sequence);
  ~CallerWork() override;

  /// A limit of one's own is final: after it the call has failed.
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
