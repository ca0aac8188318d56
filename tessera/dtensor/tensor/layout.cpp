#include "tessera/dtensor/tensor/layout.h"

#include <ATen/ExpandUtils.h>
#include <ATen/ops/empty_strided.h>

#include <algorithm>

#include "tessera/base/errors.h"
#include "tessera/base/iota_vector.h"
#include "tessera/dtensor/tensor/overlap.h"
#include "tessera/dtensor/tensor/sharded_tensor.h"

namespace tessera::dtensor {
namespace {

/// Whether every rank's part has the same shape, with more than one element along each sharded dim.
bool is_alike_on_all_ranks(const Sharding& sharding) {
  for (int dim = 0; dim < sharding.ndim(); ++dim) {
    int64_t parts = 1;
    for (const int axis : sharding.axes_of_dim(dim)) {
      if (!sharding.placement(axis).is_plain_shard()) return false;
      parts *= sharding.mesh().size(axis);
    }
    const int64_t size = sharding.shape()[static_cast<size_t>(dim)];
    if (parts > 1 && (size % parts != 0 || size / parts < 2)) return false;
  }
  return true;
}

/// Dense strides for the global shape, in the dim order of the local tensor.
std::vector<int64_t> stride_like(const at::Tensor& local, const Sharding& sharding) {
  std::vector<size_t> dims = iota_vector(local.dim());
  std::ranges::stable_sort(
      dims, [&](size_t a, size_t b) { return local.strides()[a] > local.strides()[b]; });
  std::vector<int64_t> stride(dims.size());
  int64_t next = 1;
  for (auto dim = dims.rbegin(); dim != dims.rend(); ++dim) {
    stride[*dim] = next;
    next *= std::max<int64_t>(sharding.shape()[*dim], 1);
  }
  return stride;
}

}  // namespace

Sharding with_own_elements(const Sharding& as) {
  if (!shares_elements(as)) return as;
  const auto shape = as.shape();
  return Sharding(as.mesh(), {as.placements().begin(), as.placements().end()},
                  {shape.begin(), shape.end()},
                  {.dtype = as.dtype(),
                   .stride = at::infer_dense_strides(as_ints(shape), as_ints(as.stride())),
                   .order = as.order()});
}

at::Tensor empty_local(const Sharding& as, const at::TensorOptions& options) {
  const Sharding own = with_own_elements(as);
  return at::empty_strided(as_ints(own.local_shape()), as_ints(own.local_stride()), options);
}

at::Tensor wrap_as_laid_out(const at::Tensor& local, const Sharding& predicted, Sharding& adopted) {
  if (adopted.defined() && is_laid_out_as(local, adopted.local_stride())) {
    return wrap(local, adopted);
  }
  if (local.is_non_overlapping_and_dense() && is_alike_on_all_ranks(predicted)) {
    const auto shape = predicted.shape();
    adopted =
        Sharding(predicted.mesh(), {predicted.placements().begin(), predicted.placements().end()},
                 {shape.begin(), shape.end()},
                 {.dtype = predicted.dtype(),
                  .stride = stride_like(local, predicted),
                  .order = predicted.order()});
    return wrap(local, adopted);
  }
  return wrap(empty_local(predicted, local.options()).copy_(local), with_own_elements(predicted));
}

void require_strided(std::string_view what, const at::Tensor& tensor) {
  if (!tensor.is_nested() && tensor.layout() == at::kStrided) return;
  throw NotSupported(join_text(what, ": a ", tensor.is_nested() ? "nested" : "sparse",
                               " tensor cannot be sharded; make it dense first"));
}

}  // namespace tessera::dtensor
