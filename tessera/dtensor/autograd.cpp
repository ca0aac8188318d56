// The three autograd functions between plain and sharded tensors. Each backward calls the public
// functions, which are differentiable themselves, so derivatives of any order work.
#include "tessera/dtensor/autograd.h"

#include <ATen/ops/_fw_primal.h>
#include <c10/core/AutogradState.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <c10/core/impl/TorchDispatchModeTLS.h>

#include "tessera/base/errors.h"
#include "tessera/dtensor/dtensor.h"
#include "tessera/dtensor/held_value.h"
#include "tessera/dtensor/tensor/layout.h"
#include "tessera/dtensor/tensor/sharded_tensor.h"
#include "tessera/exec/redistribute.h"
#include "tessera/sharding/without_partial.h"

namespace tessera::dtensor {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::Variable;
using torch::autograd::variable_list;

Sharding row_major(const Sharding& sharding) {
  if (is_row_major(sharding)) return sharding;
  return sharding.with_shape({sharding.shape().begin(), sharding.shape().end()});
}

/// A user function may return no gradient. libtorch would materialize it as plain zeros, which are
/// neither sharded nor equivalent to the missing gradient of a leaf.
void keep_undefined(AutogradContext* ctx) { ctx->set_materialize_grads(false); }

struct FromLocal : torch::autograd::Function<FromLocal> {
  static Variable forward(AutogradContext* ctx, const Variable& local, const Sharding& as,
                          const Sharding& grad) {
    keep_undefined(ctx);
    hold_value(ctx, "grad", grad);
    return wrap(strided_as(local.detach(), as), as);
  }
  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    if (!grads[0].defined()) return {Variable(), Variable(), Variable()};
    return {to_local(redistribute(grads[0],
                                  held_value<Sharding>(ctx, "grad")
                                      .with_dtype(static_cast<DType>(grads[0].scalar_type())))),
            Variable(), Variable()};
  }
};

struct ToLocal : torch::autograd::Function<ToLocal> {
  static Variable forward(AutogradContext* ctx, const Variable& tensor, const Sharding& grad) {
    keep_undefined(ctx);
    hold_value(ctx, "grad", grad);
    return sharded_meta(tensor)->local().detach();
  }
  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    if (!grads[0].defined()) return {Variable(), Variable()};
    const Sharding as = held_value<Sharding>(ctx, "grad");
    return {wrap_differentiable(grads[0].contiguous(),
                                as.with_dtype(static_cast<DType>(grads[0].scalar_type()))),
            Variable()};
  }
};

struct Redistribute : torch::autograd::Function<Redistribute> {
  static Variable forward(AutogradContext* ctx, const Variable& tensor,
                          const std::function<at::Tensor()>& moved, const Sharding& grad,
                          std::optional<at::ScalarType> backward_dtype) {
    keep_undefined(ctx);
    hold_value(ctx, "grad", grad);
    ctx->saved_data["dtype"] = static_cast<int64_t>(tensor.scalar_type());
    if (backward_dtype) ctx->saved_data["backward"] = static_cast<int64_t>(*backward_dtype);
    return moved();
  }
  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    if (!grads[0].defined()) return {Variable(), Variable(), Variable(), Variable()};
    Variable grad = grads[0];
    if (ctx->saved_data.count("backward") != 0) {
      grad = grad.to(static_cast<at::ScalarType>(ctx->saved_data["backward"].toInt()));
    }
    const Sharding to =
        held_value<Sharding>(ctx, "grad").with_dtype(static_cast<DType>(grad.scalar_type()));
    grad = redistribute(grad, to);
    return {grad.to(static_cast<at::ScalarType>(ctx->saved_data["dtype"].toInt())), Variable(),
            Variable(), Variable()};
  }
};

/// What moves values between ranks is no op of the dispatcher, so a graph of ops would hold its
/// result as a constant.
void refuse_tracing() {
  using c10::impl::TorchDispatchModeKey;
  using c10::impl::TorchDispatchModeTLS;
  if (!TorchDispatchModeTLS::any_modes_set()) [[likely]]
    return;
  if (!TorchDispatchModeTLS::get_mode(TorchDispatchModeKey::PROXY)) return;
  throw NotSupported(
      "make_fx and torch.func.linearize of a function that redistributes, or takes the local part "
      "of, a sharded tensor: their graphs have ops alone; trace the function on plain tensors, and "
      "shard the exported program");
}

/// Calls `function`, which is linear, on the tensor and on its tangent.
template <class Function>
at::Tensor with_tangent(const at::Tensor& tensor, const Function& function) {
  const at::Tensor tangent = tangent_of(tensor);
  if (!tangent.defined()) [[likely]]
    return function(tensor);
  at::Tensor result = function(tensor._fw_primal(0));
  if (!result.requires_grad()) result = result.detach();  // it may be the tensor's own local part
  result._set_fw_grad(function(tangent), 0, false);
  return result;
}

}  // namespace

InternalOps::InternalOps(const at::Tensor& local)
    : no_modes_(local.key_set().has(c10::DispatchKey::Python) ? c10::DispatchKeySet()
                                                              : c10::python_ks) {}

at::Tensor tangent_of(const at::Tensor& tensor) {
  if (!c10::AutogradState::get_tls_state().get_fw_grad_mode()) return {};
  return tensor._fw_grad(0);
}

bool takes_gradient(const at::Tensor& tensor) {
  return tensor.requires_grad() && torch::autograd::impl::gradient_edge(tensor).is_valid();
}

at::Tensor move_data(const at::Tensor& tensor, const Sharding& to) {
  const ShardedMeta* meta = sharded_meta(tensor);
  const InternalOps internal(meta->local());
  // The redistributed local tensor is contiguous, so the result is row-major whatever the source's
  // strides were.
  const at::Tensor local = exec::redistribute(meta->local(), meta->sharding(), to).contiguous();
  return wrap(local, row_major(to));
}

at::Tensor wrap_differentiable(const at::Tensor& local, const Sharding& as) {
  return wrap_differentiable(local, as, gradient_sharding(as));
}

at::Tensor wrap_differentiable(const at::Tensor& local, const Sharding& as, const Sharding& grad) {
  refuse_tracing();
  return with_tangent(local, [&](const at::Tensor& part) -> at::Tensor {
    if (records_uses(part)) return FromLocal::apply(part, as, grad);
    return wrap(strided_as(part.detach(), as), as);
  });
}

at::Tensor unwrap_differentiable(const at::Tensor& tensor, const Sharding& grad) {
  refuse_tracing();
  const Sharding as = sharded_meta(tensor)->sharding();
  return with_tangent(tensor, [&](const at::Tensor& given) -> at::Tensor {
    const at::Tensor same = redistribute(
        given, as.with_dtype(static_cast<DType>(given.scalar_type())));  // a tangent may differ
    return records_uses(same) ? ToLocal::apply(same, grad) : sharded_meta(same)->local();
  });
}

at::Tensor move_differentiable(const at::Tensor& tensor, const Sharding& to,
                               std::optional<at::ScalarType> backward_dtype) {
  return moved_differentiable(
      tensor, [&] { return move_data(tensor, to); }, backward_dtype);
}

at::Tensor moved_differentiable(const at::Tensor& tensor, const std::function<at::Tensor()>& moved,
                                std::optional<at::ScalarType> backward_dtype) {
  refuse_tracing();
  const auto move = [&](const at::Tensor& primal) -> at::Tensor {
    if (!records_uses(primal)) return moved();
    return Redistribute::apply(primal, moved, gradient_sharding(sharded_meta(primal)->sharding()),
                               backward_dtype);
  };
  const at::Tensor tangent = tangent_of(tensor);
  if (!tangent.defined()) [[likely]]
    return move(tensor);
  at::Tensor result = move(tensor._fw_primal(0));
  result._set_fw_grad(redistribute(tangent, sharded_meta(result)->sharding().with_dtype(
                                                static_cast<DType>(tangent.scalar_type()))),
                      0, false);
  return result;
}

Sharding gradient_sharding(const Sharding& given) {
  return without_partial(row_major(given));  // a gradient has its own strides
}

}  // namespace tessera::dtensor
