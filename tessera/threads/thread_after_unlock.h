#pragma once

#include "tessera/threads/thread_hub.h"

namespace tessera::comm {

/// Actions deferred until the hub's lock is released: waking threads, completing futures (whose
/// callbacks are user code) and releasing tensors. Declare it before the lock.
class ThreadHub::AfterUnlock {
 public:
  AfterUnlock() = default;
  ~AfterUnlock();
  AfterUnlock(const AfterUnlock&) = delete;
  AfterUnlock& operator=(const AfterUnlock&) = delete;

  void wake(std::shared_ptr<ThreadSignal> sleeper) { sleepers_.push_back(std::move(sleeper)); }
  void defer(Call call) { calls_.push_back(std::move(call)); }
  /// Completes with the value, or with the round's failure.
  void complete(c10::intrusive_ptr<c10::ivalue::Future> future, std::vector<at::Tensor> value,
                const Round& round);

 private:
  struct Completion {
    c10::intrusive_ptr<c10::ivalue::Future> future;
    std::vector<at::Tensor> value;
    std::optional<Failure> failure;
  };

  c10::SmallVector<std::shared_ptr<ThreadSignal>, 4> sleepers_;
  std::vector<Completion> completions_;
  std::vector<Call> calls_;
};

}  // namespace tessera::comm
