#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <exception>
#include <mutex>
#include <thread>
#include <vector>

namespace tessera {

/// Calls `work(0)` to `work(count - 1)`, each once, from the calling thread and a few others, in
/// this order. After an exception, the first of which is rethrown, no further call starts.
///
/// For writing files: at the speed of checksums and copies into the page cache a second thread
/// helps, more than a few wait for the disk.
template <typename Work>
void parallel_for(size_t count, const Work& work) {
  constexpr size_t kThreads = 4;
  std::atomic<size_t> next = 0;
  std::exception_ptr error;
  std::mutex guard;
  const auto run = [&] {
    for (size_t i = next++; i < count; i = next++) {
      try {
        work(i);
      } catch (...) {
        const std::lock_guard lock(guard);
        if (!error) error = std::current_exception();
        next = count;
      }
    }
  };
  std::vector<std::thread> threads;
  const size_t cores = std::max(1U, std::thread::hardware_concurrency());
  for (size_t i = 1; i < std::min({count, cores, kThreads}); ++i) threads.emplace_back(run);
  run();
  for (auto& thread : threads) thread.join();
  if (error) std::rethrow_exception(error);
}

}  // namespace tessera
