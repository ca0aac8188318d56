#include "tessera/dtensor/kernels/matmul_kernel.h"

#include <ATen/ops/linear.h>
#include <ATen/ops/matmul_native.h>

#include "tessera/dtensor/dispatch/view_replay.h"
#include "tessera/dtensor/tensor/lazy.h"

namespace tessera::dtensor {
namespace {

/// Whether folding all dims of `left` but the last would fold a sharded dim behind others.
bool folds_sharded_dim(const at::Tensor& left) {
  const ShardedMeta* meta = sharded_meta(left);
  if (meta == nullptr) return false;
  for (const Placement& placement : meta->sharding().placements()) {
    if (!placement.is_sharded() || placement.dim() == left.dim() - 1) continue;
    int64_t before = 1;
    for (int dim = 0; dim < placement.dim(); ++dim) before *= left.size(dim);
    if (before != 1) return true;
  }
  return false;
}

/// Whether `right` is the transposed view of a matrix in rows, both of them values. linear by that
/// matrix computes the same products, with the same strides of all gradients.
bool is_weight_of_linear(const at::Tensor& left, const at::Tensor& right) {
  if (right.stride(0) != 1 || right.stride(1) != right.size(0)) return false;
  const ShardedMeta* of_left = sharded_meta(left);
  const ShardedMeta* of_right = sharded_meta(right);
  return of_left != nullptr && of_left->lazy() == nullptr && of_right != nullptr &&
         of_right->lazy() == nullptr;
}

at::Tensor transposed_unseen(const at::Tensor& matrix) {
  const UnseenViews unseen;
  return matrix.t();
}

at::Tensor matmul_without_folding(const at::Tensor& left, const at::Tensor& right) {
  if (left.dim() < 3 || right.dim() != 2) return at::native::matmul(left, right);
  if (folds_sharded_dim(left) || is_weight_of_linear(left, right)) {
    return at::linear(left, transposed_unseen(right));
  }
  const UnseenViews unseen;  // of left, folded; other shapes may return a view of the product
  return at::native::matmul(left, right);
}

}  // namespace

c10::KernelFunction matmul_kernel() {
  return c10::KernelFunction::makeFromUnboxedFunction(TORCH_FN(matmul_without_folding));
}

}  // namespace tessera::dtensor
