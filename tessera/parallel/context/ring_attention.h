#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <string>
#include <vector>

#include "tessera/comm/group.h"
#include "tessera/parallel/context/block_attention.h"

/// Attention on local tensors over keys and values that are spread over a group of ranks.
///
/// Forward: n - 1 rotations of (keys, values), each overlapped with the attention over the block at
/// hand. Backward: again n - 1 rotations of keys and values, and n of their gradients, which are
/// summed on the way and end at the rank that holds the keys. Per rank it holds two blocks of keys
/// and values at a time, never all of them.
///
/// Differentiable once: the kernels have no second derivative, so create_graph is an error.
namespace tessera::parallel {

struct RingProblem {
  BlockProblem block;
  std::shared_ptr<const comm::Group> group;  ///< null: all keys are local
  std::string axis;                          ///< its mesh axes, for recorders
  std::vector<RowSet> keys;                  ///< by rank of the group
};

/// query: B x H x rows x D; key, value: B x Hkv x this rank's rows x D and E.
at::Tensor ring_attention(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
                          std::shared_ptr<const RingProblem> problem);

}  // namespace tessera::parallel
