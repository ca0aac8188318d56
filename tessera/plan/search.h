#pragma once

#include <vector>

#include "tessera/plan/moves.h"

/// The least-cost path from a problem's start to its goal over the moves of the table.
namespace tessera::plan {

struct PathStep {
  Move move;
  AxisSet group;
  Layout from;
  Layout to;
};

using Path = std::vector<PathStep>;

/// What a search looked at, for benchmarks and tests.
struct SearchStats {
  size_t expanded = 0;
  size_t visited = 0;
  bool gave_up = false;
};

/// Exact (A* with the bound of bound.h) for up to six axes and five dims and often beyond. A search
/// that tries the moves of too many layouts gives up and takes the best path it has: at worst the
/// one through replication.
Path cheapest_path(const Problem& problem, SearchStats* stats = nullptr);

/// Undo every cut and reduction, one axis at a time, then cut as the goal does. Always legal; never
/// the cheapest by intent, but a bound.
Path path_through_replication(const Problem& problem);

double path_seconds(const Problem& problem, const Path& path);

}  // namespace tessera::plan
