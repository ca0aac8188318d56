#pragma once

#include <cstdint>
#include <span>
#include <vector>

/// Which consecutive groups share collectives.
namespace tessera::fsdp {

/// Partitions a sequence of sizes into the fewest consecutive runs with a sum of at most `most`
/// each, and among those partitions minimizes the largest sum. A size above `most` forms its own
/// run. Returns the number of sizes in each run.
///
///   {3, 3, 3, 3} with 10   ->  2, 2       (3 + 3 + 3 and 3 are as few, but the largest is larger)
///   {1, 20, 1, 1} with 10  ->  1, 1, 2
std::vector<size_t> merge_neighbours(std::span<const int64_t> sizes, int64_t most);

}  // namespace tessera::fsdp
