#pragma once

#include <vector>

#include "tessera/plan/problem.h"

/// The table of legal moves.
///
///   move            from        to          precondition         the group is
///   slice           R           S           -                    none
///   keep_one        R           P           -                    none
///   rescale         P(sum|avg)  P(avg|sum)  -                    none
///   all_gather      S           R           innermost on its dim the axis
///   all_reduce      P           R           -                    the axis
///   reduce_scatter  P           S           -                    the axis
///   all_to_all      S           S           -                    the axis and all inside it
///
/// An axis that starts to shard a dim becomes the innermost on it. If an axis moves that is not the
/// innermost on its dim, the axes inside it shard other pieces afterwards, so they take part.
///
/// Moves of one kind merge into one over the flattened group of their axes: any gathers that are
/// legal in sequence, any reductions, any reduce_scatters; and one all_to_all may move all axes
/// that shard the tensor in the goal to their places.
namespace tessera::plan {

struct Edge {
  Move move;
  AxisSet group = 0;  // empty for local moves
  Layout to;
};

/// Appends every move from a layout, single and merged, to `out`, except the all_to_all of a single
/// axis of `settled`. The caller must check that the resulting layout exists.
void add_moves(const Problem& problem, const Layout& from, std::vector<Edge>& out,
               AxisSet settled = 0);

/// The axes whose ranks must communicate for an all_to_all between two layouts: those that change
/// and all that are inside one of them.
AxisSet exchange_group(const Problem& problem, const Layout& from, const Layout& to);

}  // namespace tessera::plan
