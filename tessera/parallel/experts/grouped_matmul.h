#pragma once

#include <ATen/core/Tensor.h>

#include <string>
#include <vector>

/// The matrix products of a layer of experts: rows sorted by expert, one matrix for each.
///
///   counts {2, 0, 3}:  out[0:2] = rows[0:2] @ weight[0];  out[2:5] = rows[2:5] @ weight[2]
///
/// One kernel (aten::_grouped_mm) for float32 and 16-bit floats whose rows are multiples of 16
/// bytes, otherwise one product for each expert with rows.
namespace tessera::parallel {

struct GroupedMatmulOptions {
  /// Mesh axes whose ranks have different rows. A weight that is replicated over such an axis gets
  /// a Partial gradient.
  std::vector<std::string> row_axes = {};
};

/// rows: plain, n x D. weight: experts x D x F with as many local experts as counts; plain, sharded
/// (dim 0 by experts; D or F by tensor parallelism), or a parameter of fully_shard, which is
/// gathered for the product and again for its derivative. Result: plain, n x F.
///
/// Tensor parallelism: if F is sharded, the result has this rank's columns, and the gradient of
/// `rows` is summed over the axis; if D is sharded, `rows` has this rank's columns, and the result
/// is summed. So a column-sharded and a row-sharded weight follow each other as usual.
///
/// Collective over these axes and the parameter's group: call it on every rank, also without rows.
/// Differentiable once.
at::Tensor grouped_matmul(const at::Tensor& rows, const at::Tensor& weight,
                          const std::vector<int64_t>& counts,
                          const GroupedMatmulOptions& options = {});

}  // namespace tessera::parallel
