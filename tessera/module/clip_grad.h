#pragma once

#include <ATen/core/Tensor.h>

#include <span>

/// The norm of all gradients together, and clipping by it, for parameters that lie in any way:
/// plain ones, and sharded ones of several groups and meshes.
///
///   auto norm = clip_grad_norm_(model->parameters(), 1.0);
///
/// torch::nn::utils::clip_grad_norm_ is right on sharded gradients too, but sends a message for
/// each. Here each rank adds up what it holds and one number is reduced for each mesh.
namespace tessera {

struct ClipOptions {
  double norm_type = 2;  ///< above 0; infinity: the largest absolute value
  bool error_if_nonfinite = false;
};

/// The norm before clipping, as a plain tensor of no dims, alike on every rank; not waited for on
/// devices that run ahead. Plain gradients count as alike on every rank. Called on all ranks.
at::Tensor clip_grad_norm_(std::span<const at::Tensor> parameters, double max_norm,
                           const ClipOptions& options = {});

/// The norm alone.
at::Tensor total_grad_norm(std::span<const at::Tensor> parameters, double norm_type = 2);

}  // namespace tessera
