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

/// Brings each rank a window of a sharded tensor: its part and what it needs of its neighbours'.
///
///   [8] over 2 ranks, windows [-1,5) and [3,9):
///     rank 0 holds 0 1 2 3, gets 4 and a zero before     0 | 0 1 2 3 4
///     rank 1 holds 4 5 6 7, gets 3 and a zero after          3 4 5 6 7 | 0
///
/// Windows may be of any size, in several dims at once (with the corners), over uneven, strided and
/// empty parts. One all_to_all, in which most ranks have nothing to say to each other, or none at
/// all where every window lies within its rank's part. The same on every run: sums go in rank
/// order.
class HaloExchange {
 public:
  /// The window that the rank at a coordinate needs of each of `dims`, in global indexes; what lies
  /// outside of the tensor is zero. An empty one for a rank that needs nothing.
  using Needs = std::function<std::vector<Interval>(std::span<const int> coordinate)>;

  HaloExchange(const Sharding& sharding, std::vector<int> dims, const Needs& needs);

  /// This rank's window from all ranks' parts. Every rank of the mesh calls it.
  at::Tensor gather(const at::Tensor& part) const;
  /// The reverse, of gradients: the sum of what all windows hold of this rank's part.
  at::Tensor scatter_sum(const at::Tensor& window) const;

  /// By dim of the tensor; all of the local part's size where the dim is not among `dims`.
  const std::vector<int64_t>& window_shape() const { return window_shape_; }

 private:
  /// By place in dims, what one rank's part and another's window share.
  using Shared = std::vector<std::vector<SharedRun>>;

  struct Peer {
    Shared mine_in_its_window;
    Shared its_in_my_window;
    int64_t out = 0;  // elements
    int64_t in = 0;
  };

  int64_t count(const Shared& shared) const;
  /// What is shared, as slices of a part (or, if `of_window`, of a window), in one order for both.
  std::vector<at::Tensor> blocks(const Shared& shared, const at::Tensor& tensor,
                                 bool of_window) const;
  /// Sends every other rank what it shares with `tensor`; a part's blocks go to windows, a window's
  /// go back to parts. Returns what came, rank after rank.
  at::Tensor exchange(const at::Tensor& tensor, bool of_window) const;

  Sharding sharding_;
  std::vector<int> dims_;
  std::vector<int64_t> part_shape_;
  std::vector<int64_t> window_shape_;
  std::shared_ptr<const comm::Group> group_;  // null: nobody to talk to
  std::vector<Peer> peers_;                   // by index in the group; me among them
  size_t me_ = 0;
  bool talks_ = false;
};

}  // namespace tessera::dtensor
