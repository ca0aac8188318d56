#pragma once

#include <ATen/core/Tensor.h>

#include <span>

#include "tessera/base/api.h"

/// Norm of all gradients, and gradient clipping, for any mix of plain and sharded parameters, of
/// several groups and meshes.
///
///   auto norm = clip_grad_norm_(model->parameters(), 1.0);
///
/// torch::nn::utils::clip_grad_norm_ is correct on sharded gradients too, but communicates once per
/// tensor. Here each rank sums what it holds, and one number per mesh is reduced.
namespace tessera {

struct TESSERA_API ClipOptions {
  double norm_type = 2;  ///< positive; infinity: the maximum absolute value
  bool error_if_nonfinite = false;
};

/// Returns the norm before clipping, as a plain 0-dim tensor, equal on every rank; does not
/// synchronize with asynchronous devices. Plain gradients must be equal on every rank. Collective.
/// With an infinite `max_norm` the gradients stay as they are.
TESSERA_API at::Tensor clip_grad_norm_(std::span<const at::Tensor> parameters, double max_norm,
                                       const ClipOptions& options = {});

}  // namespace tessera
