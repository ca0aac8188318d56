#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include <functional>
#include <optional>

#include "tessera/sharding/sharding.h"

/// Autograd functions that convert between plain and sharded tensors.
namespace tessera::dtensor {

/// Whether a use of the tensor that autograd records gives a gradient back. A view that was taken
/// in no_grad mode gives none, though it says requires_grad as its base does.
bool takes_gradient(const at::Tensor& tensor);

/// The forward-mode derivative that a tensor carries; undefined if it has none.
at::Tensor tangent_of(const at::Tensor& tensor);

/// A scope in which ops on local tensors are not shown to a program's TorchDispatchMode: what is
/// sent, and what decides about it, depends on caches, and is no part of the program. Modes that
/// count or save ops (selective checkpointing) would see other ops the second time.
class InternalOps {
 public:
  InternalOps() : no_modes_(c10::python_ks) {}
  /// No effect if `local` is a subclass that is written in Python.
  explicit InternalOps(const at::Tensor& local);

 private:
  c10::impl::ExcludeDispatchKeyGuard no_modes_;
};

/// The sharding of a tensor's gradient: that of the tensor, but replicated where it is Partial,
/// since every addend has the full gradient.
Sharding gradient_sharding(const Sharding& of);

/// Plain -> sharded; the gradient is returned with sharding `grad` (default: gradient_sharding).
at::Tensor wrap_differentiable(const at::Tensor& local, const Sharding& as);
at::Tensor wrap_differentiable(const at::Tensor& local, const Sharding& as, const Sharding& grad);

/// Sharded -> plain; the plain gradient is interpreted with sharding `grad`.
at::Tensor unwrap_differentiable(const at::Tensor& tensor, const Sharding& grad);

/// Sharded -> sharded with sharding `to`.
at::Tensor move_differentiable(const at::Tensor& tensor, const Sharding& to,
                               std::optional<at::ScalarType> backward_dtype = std::nullopt);

/// The same for an asynchronous redistribution; `moved` waits for its result.
at::Tensor moved_differentiable(const at::Tensor& tensor, const std::function<at::Tensor()>& moved,
                                std::optional<at::ScalarType> backward_dtype);

/// The same without autograd.
at::Tensor move_data(const at::Tensor& tensor, const Sharding& to);

}  // namespace tessera::dtensor
