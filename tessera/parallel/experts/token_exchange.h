#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <string>
#include <vector>

#include "tessera/comm/group.h"

/// Collectives on plain tensors whose sizes are known only when they run. Differentiable, to any
/// order. They make no Sharding and no plan, so a program that calls them with ever new sizes fills
/// no cache.
namespace tessera::parallel {

/// A group of ranks and the name of its axis, for recorders. A null group is one rank.
struct RankGroup {
  std::shared_ptr<const comm::Group> group;
  std::string axis;
  int size() const { return group == nullptr ? 1 : group->size(); }
  int index() const { return group == nullptr ? 0 : group->index(); }
};

/// Sends the first send[0] rows (dim 0) to rank 0 of the group, the next send[1] to rank 1, and so
/// on; returns the rows of rank 0, then those of rank 1, ...: receive[i] of rank i. One all_to_all;
/// another one backward.
at::Tensor exchange_rows(const at::Tensor& rows, const RankGroup& group, std::vector<int64_t> send,
                         std::vector<int64_t> receive);

/// The sum over the ranks, on each of them; its gradient is passed on as it is. For addends of a
/// value that every rank then uses in the same way.
at::Tensor sum_over_ranks(const at::Tensor& addend, const RankGroup& group);
/// The tensor itself; its gradient is the sum of the ranks' gradients. For a value that is equal on
/// all ranks, of which each then computes a different part.
at::Tensor use_on_ranks(const at::Tensor& whole, const RankGroup& group);

/// Without autograd.
at::Tensor all_reduce_sum(const at::Tensor& addend, const RankGroup& group);
/// n x the sizes of the vector; int64.
at::Tensor all_gather_counts(const at::Tensor& counts, const RankGroup& group);

}  // namespace tessera::parallel
