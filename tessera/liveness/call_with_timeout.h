#pragma once

#include <chrono>
#include <exception>
#include <future>
#include <memory>
#include <utility>

#include "tessera/liveness/schedule.h"

namespace tessera::comm {

/// Runs `ask` on a thread of its own; `otherwise` if that takes longer than `limit`, or throws. For
/// stores: one whose host is stopped, or vanished from the network, answers neither yes nor no. The
/// thread goes on for as long as it takes, so `ask` owns what it uses.
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
