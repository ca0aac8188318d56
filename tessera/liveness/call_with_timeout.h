#pragma once

#include <chrono>
#include <exception>
#include <future>
#include <memory>
#include <utility>

#include "tessera/liveness/schedule.h"

namespace tessera::comm {

/// Returns `ask()`, or `otherwise` on timeout or exception. For stores, which block forever while
/// their host is stopped or unreachable. The call runs on a detached thread and is not interrupted,
/// so `ask` must own everything it captures.
template <typename Answer, typename Ask>
Answer call_with_timeout(std::chrono::milliseconds limit, Answer otherwise, Ask ask) {
  try {
    const auto task = std::make_shared<std::packaged_task<Answer()>>(std::move(ask));
    auto answer = task->get_future();
    Schedule::current().start([task] { (*task)(); });
    if (ready_within(answer, limit)) return answer.get();
  } catch (const std::exception&) {  // the store is gone
  }
  return otherwise;
}

}  // namespace tessera::comm
