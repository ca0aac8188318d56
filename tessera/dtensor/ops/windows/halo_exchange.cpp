#include "tessera/dtensor/ops/windows/halo_exchange.h"

#include <ATen/ops/zeros.h>

#include <algorithm>
#include <torch/csrc/distributed/c10d/Backend.hpp>

#include "tessera/base/errors.h"
#include "tessera/comm/world.h"
#include "tessera/dtensor/tensor/layout.h"
#include "tessera/exec/buffers.h"
#include "tessera/exec/wire.h"

namespace tessera::dtensor {
namespace {

std::vector<int> axes_sharding(const Sharding& sharding, std::span<const int> dims) {
  std::vector<int> axes;
  for (int axis = 0; axis < sharding.mesh().ndim(); ++axis) {
    const Placement& p = sharding.placement(axis);
    if (p.is_sharded() && std::ranges::find(dims, p.dim()) != dims.end()) axes.push_back(axis);
  }
  return axes;
}

/// By index into `dims`: what the rank at a coordinate holds.
std::vector<std::vector<Interval>> held(const Sharding& sharding, std::span<const int> dims,
                                        const Coordinate& at) {
  std::vector<std::vector<Interval>> out;
  for (int dim : dims) out.push_back(held_intervals(sharding, dim, at));
  return out;
}

std::vector<std::vector<SharedRun>> shared(std::span<const std::vector<Interval>> part,
                                           std::span<const Interval> window) {
  std::vector<std::vector<SharedRun>> out;
  for (size_t i = 0; i < part.size(); ++i) {
    out.push_back(common_runs(part[i], std::span(&window[i], 1)));
  }
  return out;
}

/// Whether everything that a window needs of the tensor is within the same rank's part.
bool covers(std::span<const std::vector<Interval>> part, std::span<const Interval> window,
            const Sharding& sharding, std::span<const int> dims) {
  for (size_t i = 0; i < window.size(); ++i) {
    const int64_t size = sharding.shape()[static_cast<size_t>(dims[i])];
    const int64_t wanted = std::min(window[i].end, size) - std::max<int64_t>(window[i].begin, 0);
    int64_t has = 0;
    for (const SharedRun& run : common_runs(part[i], std::span(&window[i], 1))) has += run.length;
    if (has < wanted) return false;
  }
  return true;
}

bool is_empty(std::span<const Interval> window) {
  return std::ranges::any_of(window, [](const Interval& i) { return i.size() <= 0; });
}

}  // namespace

HaloExchange::HaloExchange(const Sharding& sharding, std::vector<int> dims, const Needs& needs)
    : sharding_(sharding),
      dims_(std::move(dims)),
      part_shape_(sharding.local_shape().begin(), sharding.local_shape().end()),
      window_shape_(part_shape_) {
  const DeviceMesh& mesh = sharding.mesh();
  if (!mesh.contains_me()) return;
  const Coordinate here = *mesh.my_coordinate();
  const auto axes = axes_sharding(sharding, dims_);
  std::vector<int> ranks = {*mesh.my_rank()};
  if (!axes.empty()) {
    group_ = comm::group_of(mesh, axes);
    ranks.assign(group_->ranks().begin(), group_->ranks().end());
    me_ = static_cast<size_t>(group_->index());
  }
  const auto my_part = held(sharding, dims_, here);
  const auto my_window = needs(here);
  for (size_t i = 0; i < dims_.size(); ++i) {
    window_shape_[static_cast<size_t>(dims_[i])] = my_window[i].size();
  }
  for (const int rank : ranks) {
    const Coordinate there = *mesh.coordinate_of(rank);
    const auto its_part = held(sharding, dims_, there);
    const auto its_window = needs(there);
    Peer peer;
    if (!is_empty(its_window)) peer.mine_in_its_window = shared(my_part, its_window);
    if (!is_empty(my_window)) peer.its_in_my_window = shared(its_part, my_window);
    peer.out = count(peer.mine_in_its_window);
    peer.in = count(peer.its_in_my_window);
    peers_.push_back(std::move(peer));
    talks_ = talks_ || (!is_empty(its_window) && !covers(its_part, its_window, sharding, dims_));
  }
}

int64_t HaloExchange::count(const Shared& shared) const {
  if (shared.empty()) return 0;
  int64_t numel = 1;
  for (size_t d = 0; d < part_shape_.size(); ++d) {
    const auto place = std::ranges::find(dims_, static_cast<int>(d));
    if (place == dims_.end()) {
      numel *= part_shape_[d];
      continue;
    }
    int64_t length = 0;
    for (const SharedRun& run : shared[static_cast<size_t>(place - dims_.begin())])
      length += run.length;
    numel *= length;
  }
  return numel;
}

std::vector<at::Tensor> HaloExchange::blocks(const Shared& shared, const at::Tensor& tensor,
                                             bool of_window) const {
  std::vector<at::Tensor> out;
  if (count(shared) == 0) return out;
  std::vector<size_t> at(dims_.size(), 0);
  while (true) {
    at::Tensor block = tensor;
    for (size_t i = 0; i < dims_.size(); ++i) {
      const SharedRun& run = shared[i][at[i]];
      block = block.narrow(dims_[i], of_window ? run.to : run.from, run.length);
    }
    out.push_back(std::move(block));
    size_t i = 0;
    while (i < at.size() && ++at[i] == shared[i].size()) at[i++] = 0;
    if (i == at.size()) return out;
  }
}

at::Tensor HaloExchange::exchange(const at::Tensor& tensor, bool of_window) const {
  const int64_t scale = exec::movable_scale(tensor.scalar_type());
  std::vector<int64_t> out(peers_.size(), 0);
  std::vector<int64_t> in(peers_.size(), 0);
  int64_t total_out = 0;
  int64_t total_in = 0;
  for (size_t p = 0; p < peers_.size(); ++p) {
    if (p == me_) continue;
    total_out += of_window ? peers_[p].in : peers_[p].out;
    total_in += of_window ? peers_[p].out : peers_[p].in;
    out[p] = scale * (of_window ? peers_[p].in : peers_[p].out);
    in[p] = scale * (of_window ? peers_[p].out : peers_[p].in);
  }
  const at::Tensor sent = exec::empty_like_device(tensor, {total_out}, tensor.scalar_type());
  const at::Tensor received = exec::empty_like_device(tensor, {total_in}, tensor.scalar_type());
  int64_t place = 0;
  for (size_t p = 0; p < peers_.size(); ++p) {
    if (p == me_) continue;
    const Peer& peer = peers_[p];
    const Shared& shared = of_window ? peer.its_in_my_window : peer.mine_in_its_window;
    for (const at::Tensor& block : blocks(shared, tensor, of_window)) {
      exec::alias(sent, block.sizes(), place).copy_(block);
      place += block.numel();
    }
  }
  at::Tensor sends = exec::as_movable(sent);
  at::Tensor receives = exec::as_movable(received);
  group_->backend(tensor.device().type()).alltoall_base(receives, sends, in, out)->wait();
  return received;
}

at::Tensor HaloExchange::gather(const at::Tensor& part) const {
  at::Tensor window = at::zeros(window_shape_, part.options());
  const at::Tensor received = talks_ ? exchange(part, /*of_window=*/false) : at::Tensor();
  int64_t place = 0;
  for (size_t p = 0; p < peers_.size(); ++p) {
    const auto places = blocks(peers_[p].its_in_my_window, window, /*of_window=*/true);
    const auto own = p == me_ ? blocks(peers_[p].its_in_my_window, part, /*of_window=*/false)
                              : std::vector<at::Tensor>();
    for (size_t b = 0; b < places.size(); ++b) {
      if (p == me_) {
        places[b].copy_(own[b]);
      } else {
        places[b].copy_(exec::alias(received, places[b].sizes(), place));
        place += places[b].numel();
      }
    }
  }
  return window;
}

at::Tensor HaloExchange::scatter_sum(const at::Tensor& window) const {
  at::Tensor part = empty_local(sharding_, window.options()).zero_();
  const at::Tensor received = talks_ ? exchange(window, /*of_window=*/true) : at::Tensor();
  int64_t place = 0;
  for (size_t p = 0; p < peers_.size(); ++p) {
    const auto sums = blocks(peers_[p].mine_in_its_window, part, /*of_window=*/false);
    const auto own = p == me_ ? blocks(peers_[p].mine_in_its_window, window, /*of_window=*/true)
                              : std::vector<at::Tensor>();
    for (size_t b = 0; b < sums.size(); ++b) {
      if (p == me_) {
        sums[b].add_(own[b]);
      } else {
        sums[b].add_(exec::alias(received, sums[b].sizes(), place));
        place += sums[b].numel();
      }
    }
  }
  return part;
}

}  // namespace tessera::dtensor
