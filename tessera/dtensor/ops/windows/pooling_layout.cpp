#include "tessera/dtensor/ops/windows/pooling_layout.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros_like.h>

#include <algorithm>
#include <limits>

#include "tessera/dtensor/tensor/layout.h"
#include "tessera/sharding/local_shape.h"

namespace tessera::dtensor {
namespace {

/// Converts flat positions in a plane of sizes `from` to a plane of sizes `to` with another origin.
at::Tensor moved_places(const at::Tensor& places, at::IntArrayRef from, at::IntArrayRef to,
                        const std::vector<int64_t>& shift) {
  at::Tensor rest = places;
  at::Tensor out = at::zeros_like(places);
  int64_t stride = 1;
  for (size_t d = from.size(); d-- > 0;) {
    // For a window of -inf only, the kernel's first position is outside; clamps it to the first
    // inside.
    out += (rest.remainder(from[d]) + shift[d]).clamp(0, to[d] - 1) * stride;
    rest = rest.div(from[d], "floor");
    stride *= to[d];
  }
  return out;
}

}  // namespace

PoolingLayout::PoolingLayout(const Sharding& input, const Sharding& output, PoolingArgs args)
    : args_(std::move(args)), input_(input), output_(output), first_(input.ndim() - args_.dims()) {
  for (const Placement& placement : input.placements()) {
    if (!placement.is_sharded() || placement.dim() < first_) continue;
    if (std::ranges::find(sharded_, placement.dim()) == sharded_.end())
      sharded_.push_back(placement.dim());
  }
  windows_ = windows_at(*input.mesh().my_coordinate());
}

HaloExchange PoolingLayout::exchange() const {
  return HaloExchange(input_, sharded_, [this](std::span<const int> at) { return windows_at(at); });
}

std::vector<int64_t> PoolingLayout::local_padding() const {
  std::vector<int64_t> out = args_.padding;
  for (const int dim : sharded_) out[static_cast<size_t>(dim - first_)] = 0;
  return out;
}

void PoolingLayout::fill_outside(at::Tensor& window) const {
  constexpr double kLess = -std::numeric_limits<double>::infinity();
  for (size_t i = 0; i < sharded_.size(); ++i) {
    const int64_t length = windows_[i].size();
    const int64_t size = input_.shape()[static_cast<size_t>(sharded_[i])];
    const int64_t before = std::clamp<int64_t>(-windows_[i].begin, 0, length);
    const int64_t after = std::clamp<int64_t>(windows_[i].end - size, 0, length);
    window.narrow(sharded_[i], 0, before).fill_(kLess);
    window.narrow(sharded_[i], length - after, after).fill_(kLess);
  }
}

at::Tensor PoolingLayout::divisor(bool count_padding) const {
  at::Tensor out = at::ones({}, at::kDouble);
  const auto shape = output_.local_shape();
  const auto offset = output_.local_offset();
  for (int d = 0; d < args_.dims(); ++d) {
    const auto at = static_cast<size_t>(first_ + d);
    std::vector<double> counts;
    for (int64_t o = offset[at]; o < offset[at] + shape[at]; ++o) {
      counts.push_back(static_cast<double>(args_.count(d, input_.shape()[at], o, count_padding)));
    }
    if (std::ranges::count(counts, counts[0]) == std::ssize(counts)) counts.resize(1);
    std::vector<int64_t> view(static_cast<size_t>(args_.dims()), 1);
    view[static_cast<size_t>(d)] = std::ssize(counts);
    out = out * at::tensor(counts, at::kDouble).view(view);
  }
  return out;
}

at::Tensor PoolingLayout::places_in_tensor(const at::Tensor& in_window,
                                           at::IntArrayRef window) const {
  return moved_places(in_window, window.slice(static_cast<size_t>(first_)), plane(), shifts(1));
}

at::Tensor PoolingLayout::places_in_window(const at::Tensor& in_tensor,
                                           at::IntArrayRef window) const {
  return moved_places(in_tensor, plane(), window.slice(static_cast<size_t>(first_)), shifts(-1));
}

at::IntArrayRef PoolingLayout::plane() const {
  return as_ints(input_.shape()).slice(static_cast<size_t>(first_));
}

std::vector<int64_t> PoolingLayout::shifts(int64_t sign) const {
  std::vector<int64_t> out(static_cast<size_t>(args_.dims()), 0);
  for (size_t i = 0; i < sharded_.size(); ++i) {
    out[static_cast<size_t>(sharded_[i] - first_)] = sign * windows_[i].begin;
  }
  return out;
}

std::vector<Interval> PoolingLayout::windows_at(std::span<const int> coordinate) const {
  std::vector<Interval> out;
  const auto shape = tessera::local_shape(output_, coordinate);
  const auto offset = global_offset(output_, coordinate);
  const bool nothing = std::ranges::find(shape, 0) != shape.end();
  for (const int dim : sharded_) {
    const auto d = static_cast<size_t>(dim);
    out.push_back(nothing ? Interval{0, 0}
                          : args_.window(dim - first_, {offset[d], offset[d] + shape[d]}));
  }
  return out;
}

}  // namespace tessera::dtensor
