#pragma once

#include <ATen/ops/_foreach_add.h>
#include <ATen/ops/_fused_adamw.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/gelu.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/scaled_dot_product_attention.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <torch/nn/module.h>
#include <torch/nn/modules/container/modulelist.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/normalization.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "tessera/dtensor/dtensor.h"
#include "tessera/fsdp/fully_shard.h"
#include "tessera/module/distribute_module.h"

/// A training step of a GPT with fused AdamW, in the forms that the benchmarks compare.
namespace tessera::benchmarks {

/// GPT-2 small unless told otherwise.
struct GptSize {
  int64_t words = 50304;
  int64_t width = 768;
  int64_t heads = 12;
  int64_t context = 1024;
  int blocks = 12;
};

struct BlockImpl : torch::nn::Module {
  explicit BlockImpl(const GptSize& size)
      : heads(size.heads),
        first_norm(torch::nn::LayerNormOptions({size.width})),
        second_norm(torch::nn::LayerNormOptions({size.width})),
        qkv(size.width, 3 * size.width),
        out(size.width, size.width),
        up(size.width, 4 * size.width),
        down(4 * size.width, size.width) {
    register_module("first_norm", first_norm);
    register_module("second_norm", second_norm);
    register_module("qkv", qkv);
    register_module("out", out);
    register_module("up", up);
    register_module("down", down);
  }

  at::Tensor forward(at::Tensor x) {
    const auto parts = qkv(first_norm(x)).unflatten(2, {3, heads, -1}).unbind(2);
    const auto by_head = [&](int i) { return parts[static_cast<size_t>(i)].transpose(1, 2); };
    const at::Tensor seen = at::scaled_dot_product_attention(by_head(0), by_head(1), by_head(2), {},
                                                             0.0, /*is_causal=*/true);
    x = x + out(seen.transpose(1, 2).flatten(2));
    return x + down(at::gelu(up(second_norm(x))));
  }

  int64_t heads;
  torch::nn::LayerNorm first_norm, second_norm;
  torch::nn::Linear qkv, out, up, down;
};
TORCH_MODULE(Block);

/// The head is tied to the embedding.
struct GptImpl : torch::nn::Module {
  explicit GptImpl(const GptSize& size)
      : token(size.words, size.width),
        position(size.context, size.width),
        norm(torch::nn::LayerNormOptions({size.width})) {
    register_module("token", token);
    register_module("position", position);
    for (int i = 0; i < size.blocks; ++i) blocks->push_back(Block(size));
    register_module("blocks", blocks);
    register_module("norm", norm);
  }

  at::Tensor loss(const at::Tensor& words, const at::Tensor& places, const at::Tensor& targets) {
    at::Tensor x = token(words) + position(places);
    for (const auto& block : *blocks) x = block->as<Block>()->forward(x);
    const at::Tensor logits = at::linear(norm(x), token->weight);
    return at::cross_entropy_loss(logits.flatten(0, 1), targets.flatten());
  }

  torch::nn::Embedding token, position;
  torch::nn::ModuleList blocks;
  torch::nn::LayerNorm norm;
};
TORCH_MODULE(Gpt);

/// torch::optim has no fused kernel; this calls it as Python's does.
struct FusedAdamW {
  explicit FusedAdamW(std::vector<at::Tensor> all) : parameters(std::move(all)) {
    for (const at::Tensor& p : parameters) {
      const at::Tensor value = p.detach();
      first.push_back(at::zeros_like(value));
      second.push_back(at::zeros_like(value));
      // Like a sum of the parameter, so that it is sharded if the parameter is.
      steps.push_back(at::zeros_like(value.to(at::kFloat).sum()));
    }
  }

  void step() {
    std::vector<at::Tensor> gradients;
    for (const at::Tensor& p : parameters) gradients.push_back(p.grad());
    const c10::AutoGradMode no_grad(false);
    at::_foreach_add_(steps, 1);
    at::_fused_adamw_(parameters, gradients, first, second, {}, steps, 1e-4, 0.9, 0.95, 0.1, 1e-8,
                      false, false);
  }

  void zero_grad() {
    for (at::Tensor& p : parameters) p.mutable_grad().reset();
  }

  std::vector<at::Tensor> parameters, first, second, steps;
};

struct GptData {
  int64_t batch;
  int64_t length;
  at::TensorOptions options;  ///< device and dtype of the parameters
};

/// A model with its data and optimizer. Forms, of which the name's beginning counts:
///
///   plain          libtorch alone
///   sharded        every tensor is a sharded one
///   fully_shard    a group a block and one for the rest
class TrainedGpt {
 public:
  TrainedGpt(const std::string& form, const DeviceMesh& mesh, const GptSize& size,
             const GptData& data)
      : model_(size) {
    model_->to(data.options.device());
    model_->to(c10::typeMetaToScalarType(data.options.dtype()));
    const auto options = data.options.dtype(at::kLong);
    words_ = at::randint(size.words, {data.batch, data.length}, options);
    places_ = at::arange(data.length, options);
    if (form.starts_with("sharded")) {
      distribute_module(*model_, mesh);
      words_ = distribute_tensor(words_, mesh, {Replicate()});
      places_ = distribute_tensor(places_, mesh, {Replicate()});
    } else if (form.starts_with("fully_shard")) {
      for (const auto& block : *model_->blocks) fully_shard(*block, mesh);
      fully_shard(*model_, mesh);
    }
    optimizer_ = std::make_unique<FusedAdamW>(model_->parameters());
  }

  at::Tensor forward() { return model_->loss(words_, places_, words_); }
  void update() {
    optimizer_->step();
    optimizer_->zero_grad();
  }
  void step() {
    forward().backward();
    update();
  }

 private:
  Gpt model_;
  std::unique_ptr<FusedAdamW> optimizer_;
  at::Tensor words_, places_;
};

}  // namespace tessera::benchmarks
