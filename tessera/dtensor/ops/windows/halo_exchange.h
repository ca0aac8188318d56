#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "tessera/comm/group.h"
#include "tessera/sharding/boxes.h"
#include "tessera/sharding/sharding.h"

namespace tessera::dtensor {

/// Collects, for each rank, a window of a sharded tensor: its part plus what it needs of its
/// neighbours' parts.
///
///   [8] over 2 ranks, windows [-1,5) and [3,9):
///     rank 0 has 0 1 2 3, receives 4, zero before      0 | 0 1 2 3 4
///     rank 1 has 4 5 6 7, receives 3, zero after           3 4 5 6 7 | 0
///
/// Windows may have any size, in several dims at once (including corners), over uneven, strided and
/// empty parts. Cost: one all_to_all in which most pairs exchange nothing, or none if every window
/// is within its rank's part. Deterministic: sums are taken in rank order.
class HaloExchange {
 public:
  /// The window that the rank at a coordinate needs of each of `dims`, in global indexes; zeros
  /// outside of the tensor. Empty for a rank that needs nothing.
  using Needs = std::function<std::vector<Interval>(std::span<const int> coordinate)>;

  HaloExchange(const Sharding& sharding, std::vector<int> dims, const Needs& needs);

  /// This rank's window from all ranks' parts. Collective over the mesh.
  at::Tensor gather(const at::Tensor& part) const;
  /// The adjoint, for gradients: the sum over all windows that contain elements of this rank's
  /// part.
  at::Tensor scatter_sum(const at::Tensor& window) const;

  /// By dim of the tensor; the local size for dims not in `dims`.
  const std::vector<int64_t>& window_shape() const { return window_shape_; }

 private:
  /// By index into dims: the intersection of one rank's part with another's window.
  using Shared = std::vector<std::vector<SharedRun>>;

  struct Peer {
    Shared mine_in_its_window;
    Shared its_in_my_window;
    int64_t out = 0;  // in elements
    int64_t in = 0;
  };

  int64_t count(const Shared& shared) const;
  /// The intersection as slices of a part (or, with `of_window`, of a window), in the same order
  /// for both.
  std::vector<at::Tensor> blocks(const Shared& shared, const at::Tensor& tensor,
                                 bool of_window) const;
  /// Sends every other rank its intersection with `tensor`: from parts to windows, or with
  /// `of_window` from windows to parts. Returns the received blocks in rank order.
  at::Tensor exchange(const at::Tensor& tensor, bool of_window) const;

  Sharding sharding_;
  std::vector<int> dims_;
  std::vector<int64_t> part_shape_;
  std::vector<int64_t> window_shape_;
  std::shared_ptr<const comm::Group> group_;  // null: no communication
  std::vector<Peer> peers_;                   // by index in the group, including this rank
  size_t me_ = 0;
  bool talks_ = false;
};

}  // namespace tessera::dtensor
