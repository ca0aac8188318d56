#include "tessera/dtensor/kernels/matmul_kernel.h"

#include <ATen/ops/linear.h>
#include <ATen/ops/matmul_native.h>

#include "tessera/dtensor/dispatch/view_replay.h"
#include "tessera/dtensor/lazy.h"

namespace tessera::dtensor {
namespace {

/// Whether folding all dims of `left` but the last would fold a sharded dim behind others.
bool folds_sharded_dim(const at::Tensor& left, const at::Tensor& right) {
  if (left.dim() < 3 || right.dim() != 2) return false;
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

at::Tensor matmul_without_folding(const at::Tensor& left, const at::Tensor& right) {
  if (folds_sharded_dim(left, right)) return at::linear(left, right.t());
  if (left.dim() < 3 || right.dim() != 2) return at::native::matmul(left, right);
  const UnseenViews unseen;  // of left, folded; other shapes may return a view of the product
  return at::native::matmul(left, right);
}

}  // namespace

c10::KernelFunction matmul_kernel() {
  return c10::KernelFunction::makeFromUnboxedFunction(TORCH_FN(matmul_without_folding));
}

}  // namespace tessera::dtensor
