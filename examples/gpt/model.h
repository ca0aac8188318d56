#pragma once

#include <torch/nn/module.h>
#include <torch/nn/modules/container/modulelist.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/normalization.h>

#include "settings.h"

/// A GPT in plain torch::nn. What makes it a distributed one is in distribute.cpp.
namespace gpt {

struct AttentionImpl : torch::nn::Module {
  explicit AttentionImpl(const Settings& settings);
  at::Tensor forward(const at::Tensor& x);

  int64_t heads;
  torch::nn::Linear query, key, value, out;
};
TORCH_MODULE(Attention);

struct BlockImpl : torch::nn::Module {
  explicit BlockImpl(const Settings& settings);
  at::Tensor forward(at::Tensor x);

  torch::nn::LayerNorm attention_norm, norm;
  Attention attention;
  torch::nn::Linear up, down;
};
TORCH_MODULE(Block);

struct GptImpl : torch::nn::Module {
  explicit GptImpl(const Settings& settings);
  /// Bytes, batch x length -> the logits of the byte after each, batch x length x 256.
  at::Tensor forward(const at::Tensor& bytes);
  /// Mean cross-entropy.
  at::Tensor loss(const at::Tensor& bytes, const at::Tensor& targets);

  torch::nn::Embedding token;
  at::Tensor position;
  torch::nn::ModuleList blocks;
  torch::nn::LayerNorm norm;
  torch::nn::Linear head;
};
TORCH_MODULE(Gpt);

}  // namespace gpt
