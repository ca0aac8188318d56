#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <span>
#include <vector>

#include "tessera/sharding/sharding.h"

/// Many small tensors in few messages. A message costs some 100 us before it carries a byte, so
/// tensors that travel alike are packed into flat ones of at most kBucketBytes and go together;
/// those of more travel alone. What is sent follows from shardings alone, so ranks agree.
namespace tessera::dtensor {

constexpr int64_t kBucketBytes = int64_t{16} << 20;

/// scatter_from (spread.h) of each of several tensors; the parts may share memory.
std::vector<at::Tensor> scatter_all_from(std::span<const at::Tensor> fulls, int source,
                                         std::span<const Sharding> shardings);

/// Calls take(i, full_tensor(tensors[i])) for each of several sharded tensors, of any meshes,
/// without gradients; no more than a bucket of them is held at a time. With an empty `take` this
/// rank only sends.
using TakeFull = std::function<void(size_t index, at::Tensor full)>;
void gather_full_tensors(std::span<const at::Tensor> tensors, const TakeFull& take);

/// Each tensor redistributed to the sharding beside it, without gradients. Those that only reduce,
/// from Partial to Replicate, share messages, and then memory.
std::vector<at::Tensor> reduce_all(std::span<const at::Tensor> tensors,
                                   std::span<const Sharding> targets);

}  // namespace tessera::dtensor
