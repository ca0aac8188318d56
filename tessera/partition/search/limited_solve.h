#pragma once

#include <optional>
#include <vector>

#include "tessera/partition/search/cost_network.h"

namespace tessera::partition {

/// Bytes that the states of variables take, and the most that a choice may take in all.
struct ByteLimit {
  std::vector<std::vector<double>> bytes;  ///< by variable and state
  double most = 0;

  /// With only the listed states of each variable.
  ByteLimit restricted(std::span<const std::vector<int>> keep) const;
};

struct LimitedOptions {
  /// Seconds a byte: cost + price * (bytes - most) bounds what a choice within the limit costs. The
  /// result does not depend on it, the time does: the price that gives the highest bound is best.
  double price = 0;
  /// Only choices that cost less are searched for.
  double below = 0;
  /// Cells and sums of entries that may be looked at.
  double work = 5e7;
};

/// The cheapest choice within a limit of bytes, exactly. Infinite cost: none is below
/// `options.below`. No result: it would take more work than allowed.
///
/// Variables are eliminated as by `solve`, but what is left for each combination of neighbours is a
/// front, the pairs of cost and bytes of which no other is better in both:
///
///   one layer, weights replicated or sharded      (1.0 ms, 400 MB) (1.3 ms, 50 MB)
///   two of them                                   (2.0, 800) (2.3, 450) (2.6, 100)
///
/// Two passes with a price on bytes give the least priced sum of every combination of states. Sums
/// of which even the least completion costs more than `below` are left out, so fronts stay short.
std::optional<Solution> solve_limited(const CostNetwork& network, const ByteLimit& limit,
                                      const LimitedOptions& options);

}  // namespace tessera::partition
