#pragma once

#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/custom_function.h>

#include <functional>

/// Activation checkpointing: what a function computed inside is forgotten, and computed again in
/// backward, as a forward and a backward inside of backward.
namespace tessera::test {

using Forward = std::function<at::Tensor(const at::Tensor&)>;

/// fn(x). The function must live until backward is over.
struct Recompute : torch::autograd::Function<Recompute> {
  static at::Tensor forward(torch::autograd::AutogradContext* ctx, const at::Tensor& x,
                            const Forward* fn) {
    ctx->save_for_backward({x});
    ctx->saved_data["function"] = reinterpret_cast<int64_t>(fn);
    const at::NoGradGuard no_grad;
    return (*fn)(x);
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* ctx,
                                                 torch::autograd::variable_list grads) {
    const auto* fn = reinterpret_cast<const Forward*>(ctx->saved_data["function"].toInt());
    const at::Tensor x = ctx->get_saved_variables()[0].detach().requires_grad_();
    at::Tensor y;
    {
      const at::AutoGradMode records(true);
      y = (*fn)(x);
    }
    torch::autograd::backward({y}, {grads[0]});
    return {x.grad(), at::Tensor()};
  }
};

}  // namespace tessera::test
