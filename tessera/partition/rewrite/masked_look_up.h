#pragma once

#include <span>

#include "tessera/partition/graph/assignment.h"
#include "tessera/partition/rewrite/emitter.h"

/// Look-ups along a sharded dim (rules' kernel "mask"): every rank finds the rows that it holds
/// and zeros for the others, so that the sum over the ranks is the answer.
///
///   embedding(weight, index), rows [8, 16) here
///     here = index >= 8 & index < 16
///     masked_fill(embedding(weight, clamp(index - 8, 0, 7)), !here, 0)
///
/// An index that no rank holds is an error when the program runs, as it is without sharding.
namespace tessera::partition {

/// Appends the nodes. `operands` are the shardings that the op runs with, seen from the rank.
/// NotSupported for ops other than embedding, index_select and gather, and for tables of which the
/// rank holds several intervals or nothing.
void emit_masked_look_up(Emitter& emit, const NodeAssignment& chosen, program::Node node,
                         std::span<const Sharding> operands);

}  // namespace tessera::partition
