#pragma once

#include "tessera/rules/rule.h"

/// aten::einsum, whose equation is a rule in itself:
///
///   btw,ewh->beth   of 2x8x12, 4x12x16     btw, ewh -> beth : batch, rows, experts or columns may
///                                          be sharded; sharding w makes partial sums
///   ...ij,...jk     of 2x3x4, 2x4x5        *ij, *jk -> *ik
///   ii->i                                  whole: a shard does not hold its part of the diagonal
namespace tessera::partition {

rules::Rule einsum_rule();

/// The call's equation as a line of the rules' notation; empty if it has more than 26 labels or
/// does not fit its operands.
std::string einsum_line(const rules::OpCall& call);

/// Multiplications and additions of the whole op, in one pass over all labels.
double einsum_flops(const rules::OpCall& call);

}  // namespace tessera::partition
