#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>

#include "tessera/sharding/placement.h"

/// Async tensor parallelism: matrix products that overlap with the communication of their operand
/// or result. The operand is split along its first dim, the batch, into pieces:
///
///   gather_linear    x [8, S, K] is S1, weight [N, K] S0; 4 pieces: while x[0:2] is multiplied,
///                    x[2:4] is being gathered
///   linear_scatter   x is S2, weight S1, the result wanted as S1: while the addends of out[0:2]
///                    are being reduced to shards, out[2:4] is computed
///
/// The results are those of redistribute and linear, and so are the gradients. In backward, the
/// gather of linear_scatter's gradient overlaps in the same way; the gradients of gathered inputs
/// are added up first, where several products use one input, and then reduced in one message.
///
/// Costs: each piece is a message and a product of its own, and pieces are copied together. It pays
/// where a message takes about as long as its product and proceeds by itself (accelerators).
namespace tessera::parallel {

/// linear(x gathered over `axis`, weight). No value if it does not apply, and nothing is done: x is
/// not sharded there over a dim between the first and the last, has fewer than two rows in its
/// first dim, or a gathered copy of it is kept already.
std::optional<at::Tensor> gather_linear(const at::Tensor& x, const at::Tensor& weight, int axis,
                                        int64_t pieces);

/// linear(x, weight), whose result is Partial over `axis`, redistributed to `to`. No value if it
/// does not apply: x is not sharded over its last dim there, or `to` is not a Shard between the
/// first dim and the last.
std::optional<at::Tensor> linear_scatter(const at::Tensor& x, const at::Tensor& weight, int axis,
                                         const Placement& to, int64_t pieces);

}  // namespace tessera::parallel
