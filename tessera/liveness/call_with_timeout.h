#pragma once

#include <chrono>
#include <exception>
#include <future>
#include <memory>
#include <utility>

#include "tessera/liveness/schedule.h"

namespace tessera::comm {

/// Returns `call()`, or `fallback` on timeout or exception. For stores, which block forever while
/// their host is stopped or unreachable. The call runs on a detached thread and is not interrupted,
/// so `call` must own everything it captures.
template <typename Result, typename Call>
Result call_with_timeout(std::chrono::milliseconds timeout, Result fallback, Call call) {
  try {
    const auto task = std::make_shared<std::packaged_task<Result()>>(std::move(call));
    auto result = task->get_future();
    Schedule::current().start([task] { (*task)(); });
    if (ready_within(result, timeout)) return result.get();
  } catch (const std::exception&) {  // the store is gone
  }
  return fallback;
}

}  // namespace tessera::comm
