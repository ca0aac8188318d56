#pragma once

#include <cstdint>
#include <span>
#include <vector>

/// Which neighbours share collectives.
namespace tessera::fsdp {

/// Cuts a row of sizes into as few stretches as possible of at most `most` each, and among these
/// ways takes the one whose largest stretch is smallest. A size above `most` stands alone. Returns
/// how many sizes each stretch has.
///
///   {3, 3, 3, 3} with 10   ->  2, 2       (3 + 3 + 3 and 3 are as few, but larger)
///   {1, 20, 1, 1} with 10  ->  1, 1, 2
std::vector<size_t> merge_neighbours(std::span<const int64_t> sizes, int64_t most);

}  // namespace tessera::fsdp
