#include "tessera/dtensor/tensor/overlap.h"

#include <ATen/ops/empty_strided.h>

#include <algorithm>
#include <span>
#include <vector>

#include "tessera/base/errors.h"
#include "tessera/dtensor/tensor/layout.h"
#include "tessera/sharding/without_partial.h"

namespace tessera::dtensor {
namespace {

/// Sorted by stride, each dim must step over everything that the smaller ones reach.
bool may_share(std::span<const int64_t> shape, std::span<const int64_t> stride) {
  std::vector<std::pair<int64_t, int64_t>> dims;  // stride, size
  for (size_t d = 0; d < shape.size(); ++d) {
    if (shape[d] == 0) return false;
    if (shape[d] > 1) dims.emplace_back(stride[d], shape[d]);
  }
  std::ranges::sort(dims);
  int64_t reach = 1;
  for (const auto& [step, size] : dims) {
    if (step < reach) return true;
    reach += (size - 1) * step;
  }
  return false;
}

/// Whether expanded dims are the only ones that share memory.
bool is_only_expanded(const Sharding& sharding) {
  std::vector<int64_t> shape(sharding.shape().begin(), sharding.shape().end());
  for (size_t d = 0; d < shape.size(); ++d) {
    if (sharding.stride()[d] == 0) shape[d] = std::min<int64_t>(shape[d], 1);
  }
  return !may_share(shape, sharding.stride());
}

bool is_expanded(const Sharding& sharding, int dim) {
  const auto d = static_cast<size_t>(dim);
  return sharding.stride()[d] == 0 && sharding.shape()[d] > 1;
}

bool shards_expanded_dim(const Sharding& sharding) {
  return std::ranges::any_of(sharding.placements(), [&](const Placement& p) {
    return p.is_sharded() && is_expanded(sharding, p.dim());
  });
}

bool shards_no_dim(const Sharding& sharding) {
  return std::ranges::none_of(sharding.placements(),
                              [](const Placement& p) { return p.is_sharded(); });
}

/// Whether every rank holds the same elements in both: they differ in Partial and Replicate alone.
bool hold_same_elements(const Sharding& a, const Sharding& b) {
  const Sharding reduced_a = without_partial(a);
  const Sharding reduced_b = without_partial(b);
  return std::ranges::equal(reduced_a.placements(), reduced_b.placements()) &&
         reduced_a.order() == reduced_b.order();
}

}  // namespace

bool shares_elements(const Sharding& sharding) {
  return may_share(sharding.shape(), sharding.stride());
}

bool can_share_elements(const Sharding& as, const Sharding& of) {
  if (hold_same_elements(as, of) || shards_no_dim(as)) return true;
  return is_only_expanded(as) && !shards_expanded_dim(as);
}

at::Tensor copy_sharing_elements(const at::Tensor& values, const Sharding& as,
                                 const at::Tensor& like, const Sharding& of) {
  ensure(can_share_elements(as, of), "a copy that cannot share elements as its source does");
  const at::IntArrayRef strides = hold_same_elements(as, of) ? like.strides()
                                  : shards_no_dim(as)        ? as_ints(as.stride())
                                                             : as_ints(as.local_stride());
  at::Tensor out = at::empty_strided(values.sizes(), strides, values.options());
  copy_into(out, values);
  return out;
}

void copy_into(const at::Tensor& to, const at::Tensor& from) {
  at::Tensor target = to;
  at::Tensor source = from;
  for (int64_t d = to.dim() - 1; d >= 0; --d) {  // libtorch does not copy into expanded dims
    if (to.stride(d) != 0 || to.size(d) < 2) continue;
    target = target.select(d, 0);
    source = source.select(d, 0);
  }
  target.copy_(source);
}

}  // namespace tessera::dtensor
