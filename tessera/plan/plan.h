#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/base/api.h"
#include "tessera/cost/machine.h"
#include "tessera/sharding/sharding.h"

/// A plan: the steps that redistribute a tensor from one sharding to another.
///
///   dp=2,tp=4 : S0,S0 : 4096x4096  ->  dp=2,tp=4 : R,S1 : 4096x4096
///     all_to_all over tp    S0,S0 -> S0,S1
///     all_gather over dp    S0,S1 -> R,S1
///
/// Each step is one move of the table in moves.h, over one axis or, if merged, over the flattened
/// group of several. A plan is a pure function of (from, to, machine): every rank computes the same
/// one.
///
/// Steps connect canonical shardings (canonical.h): the first starts with, and the last ends with,
/// the canonical form of `from` and `to`. A plan without steps means that the local tensor is
/// already the result; `from` and `to` may still differ, for example in the placement of an axis of
/// one rank.
namespace tessera::plan {

enum class Move : uint8_t {
  slice,           // R -> S, local: keep my part
  keep_one,        // R -> P, local: see below
  rescale,         // P(sum) <-> P(avg), local
  all_gather,      // S -> R
  all_reduce,      // P -> R
  reduce_scatter,  // P -> S
  all_to_all,      // S -> S
  transfer,        // one mesh to another, over the ranks of both
};
// keep_one: if the reduction would count the value repeatedly (sum, product, bxor), the first rank
// of the axis keeps it and the others get the neutral element; otherwise all keep it.
// Reductions over several axes may mix sum and avg: one sum, divided by the ranks of the avg axes.

constexpr int kMoves = 8;

TESSERA_API std::string_view move_name(Move move);
/// Whether the move needs no communication.
TESSERA_API bool is_local(Move move);

struct TESSERA_API Step {
  Move move;
  /// Mesh axes of the group, outermost first; for a local move, those whose placement changes;
  /// empty for a transfer.
  std::vector<int> axes;
  Sharding from;
  Sharding to;
  int64_t bytes = 0;   ///< the largest number of bytes that one rank sends
  double seconds = 0;  ///< by the cost model of the machine

  /// "all_gather over dp  S0,S1 -> R,S1"
  std::string to_text() const;
};

struct TESSERA_API Plan {
  Sharding from;
  Sharding to;
  std::vector<Step> steps;

  double seconds() const;
  int64_t bytes() const;
  bool communicates() const;
  /// One line per step.
  std::string to_text() const;
};

/// Computes the least-cost plan, uncached: 5 to 50 us for up to three axes, below 1 ms for four or
/// five (a few ms if strided or ragged shards do not divide). Throws InvalidArgument if the shapes
/// differ, NotSupported for a mesh with more than eight axes of several ranks. The dtype may
/// differ: only the source's size in bytes matters; stride differences need no step.
TESSERA_API Plan make_plan(const Sharding& from, const Sharding& to, const cost::Machine& machine);

/// The plan for the default machine, from a cache shared by all threads. A warm look-up hashes two
/// pointers.
TESSERA_API std::shared_ptr<const Plan> cached_plan(const Sharding& from, const Sharding& to);

struct TESSERA_API CacheStats {
  uint64_t hits = 0;
  uint64_t misses = 0;
  size_t entries = 0;
};
TESSERA_API CacheStats cache_stats();
/// Drops the plans of a world, which they would keep alive.
TESSERA_API void forget_plans(const World* world);
TESSERA_API void clear_cache();

}  // namespace tessera::plan
