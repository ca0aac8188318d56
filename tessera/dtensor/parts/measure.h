#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "tessera/sharding/sharding.h"

namespace tessera::dtensor {

/// The sharding whose part on every rank is that rank's `local`; ranks exchange their sizes (one
/// small all_gather over the mesh). Parts as torch.chunk splits them give plain shards, others
/// ragged ones. The global strides have the dim order of the first rank's tensor. If the parts fit
/// no global tensor, throws the same error on every rank.
Sharding measure(const at::Tensor& local, const DeviceMesh& mesh,
                 std::vector<Placement> placements);

/// The same without communication; assumes that every part has the size of this one.
Sharding assume_even(const at::Tensor& local, const DeviceMesh& mesh,
                     std::vector<Placement> placements);

/// Throws, on every rank, if the ranks' tensors differ in dtype, in sizes that must be equal, in
/// dim order, or in requires_grad. One more small all_gather.
void check_metadata(const at::Tensor& local, const DeviceMesh& mesh);

}  // namespace tessera::dtensor
