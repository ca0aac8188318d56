#include "tessera/threads/thread_after_unlock.h"

namespace tessera::comm {

void ThreadHub::AfterUnlock::complete(c10::intrusive_ptr<c10::ivalue::Future> future,
                                      std::vector<at::Tensor> value, const Round& round) {
  completions_.push_back({std::move(future), std::move(value), round.failure});
}

ThreadHub::AfterUnlock::~AfterUnlock() {
  for (auto& sleeper : sleepers_) sleeper->signal();
  for (auto& [future, value, failure] : completions_) {
    try {
      if (failure) {
        future->setError(failure->exception());
      } else {
        future->markCompleted(c10::IValue(std::move(value)));
      }
    } catch (...) {
      // An exception of a callback has no caller to propagate to.
    }
  }
}

}  // namespace tessera::comm
