#pragma once

#include <vector>

#include "tessera/plan/problem.h"

/// The table of legal moves.
///
///   move            from        to          the axis must be     the group is
///   slice           R           S           -                    none
///   keep_one        R           P           -                    none
///   rescale         P(sum|avg)  P(avg|sum)  -                    none
///   all_gather      S           R           last to cut its dim  the axis
///   all_reduce      P           R           -                    the axis
///   reduce_scatter  P           S           -                    the axis
///   all_to_all      S           S           -                    the axis and all inside it
///
/// An axis that starts to shard a dim becomes the last to cut it. Where an axis that is not the
/// last to cut its dim moves, the axes inside it cut other pieces afterwards, so they take part.
///
/// Moves of one kind merge into one over the flattened group of their axes: any gathers that are
/// legal one after the other, any reductions, any reduce_scatters; and one all_to_all may put all
/// axes right that are to shard the tensor.
namespace tessera::plan {

struct Edge {
  Move move;
  AxisSet group = 0;  // none for local moves
  Layout to;
};

/// Every move from a layout, single and merged, appended to `out`, but for the all_to_all of a
/// single axis of `settled`. Whether the layout that a move leads to exists is for the caller to
/// ask.
void add_moves(const Problem& problem, const Layout& from, std::vector<Edge>& out,
               AxisSet settled = 0);

/// The axes whose ranks must talk for an all_to_all between two layouts: those that change and all
/// that cut inside one of them.
AxisSet exchange_group(const Problem& problem, const Layout& from, const Layout& to);

}  // namespace tessera::plan
