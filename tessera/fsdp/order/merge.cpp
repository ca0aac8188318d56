#include "tessera/fsdp/order/merge.h"

#include <algorithm>

namespace tessera::fsdp {
namespace {

/// Greedy: fills each run as far as it fits, which gives the fewest runs.
std::vector<size_t> filled(std::span<const int64_t> sizes, int64_t most) {
  std::vector<size_t> counts;
  int64_t room = 0;
  for (const int64_t size : sizes) {
    if (counts.empty() || size > room) {
      counts.push_back(0);
      room = most;
    }
    ++counts.back();
    room = std::max<int64_t>(room - size, 0);
  }
  return counts;
}

}  // namespace

std::vector<size_t> merge_neighbours(std::span<const int64_t> sizes, int64_t most) {
  std::vector<size_t> best = filled(sizes, most);
  int64_t low = 0;  // too small for that number of runs
  int64_t high = most;
  while (high - low > 1) {
    const int64_t middle = low + (high - low) / 2;
    std::vector<size_t> counts = filled(sizes, middle);
    if (counts.size() > best.size()) {
      low = middle;
    } else {
      high = middle;
      best = std::move(counts);
    }
  }
  return best;
}

}  // namespace tessera::fsdp
