#include "tessera/dtensor/parts/held_indexes.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>

#include "tessera/base/shape.h"
#include "tessera/sharding/local_shape.h"

namespace tessera::dtensor {
namespace {

std::vector<Interval> mine(const Sharding& sharding, int dim) {
  const auto& coordinate = sharding.mesh().my_coordinate();
  if (!coordinate) return {};
  return held_intervals(sharding, dim, *coordinate);
}

}  // namespace

at::Tensor held_indexes(const Sharding& sharding, int dim, c10::Device device) {
  const auto options = at::TensorOptions(device).dtype(at::kLong);
  std::vector<at::Tensor> runs;
  for (const Interval& part : mine(sharding, dim)) {
    runs.push_back(at::arange(part.begin, part.end, options));
  }
  if (runs.empty()) return at::empty({0}, options);
  return runs.size() == 1 ? runs[0] : at::cat(runs);
}

HeldIndexes::HeldIndexes(const Sharding& sharding) {
  if (!sharding.mesh().contains_me()) return;
  const auto stride = contiguous_stride(sharding.shape());
  int last_sharded = 0;
  for (int dim = 0; dim < sharding.ndim(); ++dim) {
    if (!sharding.axes_of_dim(dim).empty()) last_sharded = dim;
  }
  for (int dim = 0; dim < last_sharded; ++dim) {
    auto& indexes = outer_.emplace_back();
    for (const Interval& part : mine(sharding, dim)) {
      for (int64_t i = part.begin; i < part.end; ++i) {
        indexes.push_back(i * stride[static_cast<size_t>(dim)]);
      }
    }
    rows_ *= static_cast<int64_t>(indexes.size());
  }
  if (sharding.ndim() == 0) {
    runs_.push_back({0, 1});
  } else {
    // A dim of size 0 may have any stride; such a tensor has no elements to index.
    const int64_t inner = sharding.numel() == 0 ? 0 : stride[static_cast<size_t>(last_sharded)];
    for (const Interval& part : mine(sharding, last_sharded)) {
      runs_.push_back({part.begin * inner, part.size() * inner});
    }
  }
  for (const Piece& piece : runs_) row_size_ += piece.length;
  if (row_size_ == 0) rows_ = 0;
}

int64_t HeldIndexes::row_index(int64_t row) const {
  int64_t index = 0;
  for (size_t dim = outer_.size(); dim-- > 0;) {
    const auto size = static_cast<int64_t>(outer_[dim].size());
    index += outer_[dim][static_cast<size_t>(row % size)];
    row /= size;
  }
  return index;
}

}  // namespace tessera::dtensor
