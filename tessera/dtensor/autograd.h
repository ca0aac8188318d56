#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <optional>

#include "tessera/sharding/sharding.h"

namespace torch::autograd {
struct AutogradContext;
}

/// The crossings between plain and sharded tensors as autograd sees them.
namespace tessera::dtensor {

/// How a tensor's gradient is placed: as the tensor, but replicated where that is Partial, since
/// every addend has the whole gradient.
Sharding gradient_sharding(const Sharding& of);

/// Plain -> sharded; the gradient comes back placed as `grad` (default: gradient_sharding).
at::Tensor wrap_differentiable(const at::Tensor& local, const Sharding& as);
at::Tensor wrap_differentiable(const at::Tensor& local, const Sharding& as, const Sharding& grad);

/// Sharded -> plain; the plain gradient that comes back is taken as placed like `grad`.
at::Tensor unwrap_differentiable(const at::Tensor& tensor, const Sharding& grad);

/// Sharded -> otherwise sharded.
at::Tensor move_differentiable(const at::Tensor& tensor, const Sharding& to,
                               std::optional<at::ScalarType> backward_dtype = std::nullopt);

/// The same for a move under way: `moved` waits for its result.
at::Tensor moved_differentiable(const at::Tensor& tensor, const std::function<at::Tensor()>& moved,
                                std::optional<at::ScalarType> backward_dtype);

/// The same without autograd.
at::Tensor move_data(const at::Tensor& tensor, const Sharding& to);

/// A sharding that a derivative needs, kept from forward to backward.
void hold_sharding(torch::autograd::AutogradContext* ctx, const char* name,
                   const Sharding& sharding);
Sharding held_sharding(torch::autograd::AutogradContext* ctx, const char* name);

}  // namespace tessera::dtensor
