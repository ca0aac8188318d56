#pragma once

#include <vector>

#include "tessera/plan/moves.h"

/// Searches the least-cost path from a problem's start to its goal over the moves of the table.
namespace tessera::plan {

struct PathStep {
  Move move;
  AxisSet group;
  Layout from;
  Layout to;
};

using Path = std::vector<PathStep>;

/// Counters of a search, for benchmarks and tests.
struct SearchStats {
  size_t expanded = 0;
  size_t visited = 0;
  bool gave_up = false;
};

/// Exact (A* with the bound of bound.h) for up to six axes and five dims and often beyond. A search
/// that expands too many layouts stops and returns the best path so far: at worst the one through
/// replication.
Path cheapest_path(const Problem& problem, SearchStats* stats = nullptr);

/// Gathers and reduces one axis at a time until everything is replicated, then shards as the goal.
/// Always legal; used as an upper bound.
Path path_through_replication(const Problem& problem);

double path_seconds(const Problem& problem, const Path& path);

}  // namespace tessera::plan
