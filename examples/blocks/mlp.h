#pragma once

#include <ATen/ops/gelu.h>
#include <torch/nn/module.h>
#include <torch/nn/modules/linear.h>

/// Blocks of networks in plain torch::nn, as one finds them: nothing here knows of ranks.
namespace blocks {

struct MlpImpl : torch::nn::Module {
  MlpImpl(int64_t width, int64_t hidden) : up(width, hidden), down(hidden, width) {
    register_module("up", up);
    register_module("down", down);
  }
  at::Tensor forward(const at::Tensor& x) { return down(at::gelu(up(x))); }

  torch::nn::Linear up, down;
};
TORCH_MODULE(Mlp);

}  // namespace blocks
