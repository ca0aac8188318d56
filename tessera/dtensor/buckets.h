#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <span>
#include <vector>

#include "tessera/sharding/sharding.h"

/// Batches many small tensors into few messages. A message costs about 100 us before its first
/// byte, so compatible tensors are packed into flat buffers of at most kBucketBytes; larger ones
/// are sent alone. The packing depends on shardings only, so all ranks agree on it.
namespace tessera::dtensor {

constexpr int64_t kBucketBytes = int64_t{16} << 20;

/// scatter_from (parts/scatter.h) for several tensors; the parts may share memory.
std::vector<at::Tensor> scatter_all_from(std::span<const at::Tensor> fulls, int source,
                                         std::span<const Sharding> shardings);

/// Calls take(i, full_tensor(tensors[i])) for each tensor, on any meshes, without gradients. At
/// most one bucket is in memory at a time. With an empty `take` this rank only sends.
using TakeFull = std::function<void(size_t index, at::Tensor full)>;
void gather_full_tensors(std::span<const at::Tensor> tensors, const TakeFull& take);

/// Redistributes each tensor to the target of the same index, without gradients. Pure reductions
/// (Partial to Replicate) share messages; their results then share memory.
std::vector<at::Tensor> reduce_all(std::span<const at::Tensor> tensors,
                                   std::span<const Sharding> targets);

}  // namespace tessera::dtensor
