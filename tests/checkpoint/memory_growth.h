#pragma once

#include <malloc.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <fstream>
#include <functional>
#include <string>
#include <string_view>
#include <thread>

/// How much memory of this process a piece of work takes.
namespace tessera::test {

/// A line of a file of /proc that is "name: number", the number.
inline int64_t proc_number(const std::string& file, std::string_view name) {
  std::ifstream lines("/proc/self/" + file);
  for (std::string line; std::getline(lines, line);) {
    if (line.starts_with(name)) return std::stoll(line.substr(name.size()));
  }
  return 0;
}

/// The most that a number of /proc/self/status in kB grows while `work` runs, in bytes, by many
/// samples: "RssAnon:" is memory that is not of files, "VmRSS:" all that is resident.
inline int64_t growth_during(std::string_view name, const std::function<void()>& work) {
  ::malloc_trim(0);
  const auto now = [&] { return proc_number("status", name) * 1024; };
  const int64_t before = now();
  std::atomic<int64_t> most = before;
  std::atomic<bool> done = false;
  std::thread sampler([&] {
    while (!done) {
      most = std::max<int64_t>(most, now());
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
  });
  work();
  done = true;
  sampler.join();
  return most - before;
}

}  // namespace tessera::test
