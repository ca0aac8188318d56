#pragma once

#include <chrono>
#include <exception>
#include <future>
#include <thread>
#include <utility>

namespace tessera::comm {

/// Runs `ask` on a thread of its own; `otherwise` if that takes longer than `limit`, or throws. For
/// stores: one whose host is stopped, or vanished from the network, answers neither yes nor no. The
/// thread goes on for as long as it takes, so `ask` owns what it uses. Inside comm only.
template <typename Answer, typename Ask>
Answer within(std::chrono::milliseconds limit, Answer otherwise, Ask ask) {
  try {
    std::packaged_task<Answer()> task(std::move(ask));
    auto answer = task.get_future();
    std::thread(std::move(task)).detach();
    if (answer.wait_for(limit) == std::future_status::ready) return answer.get();
  } catch (const std::exception&) {  // the store is gone
  }
  return otherwise;
}

}  // namespace tessera::comm
