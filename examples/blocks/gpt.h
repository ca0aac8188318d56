#pragma once

#include <ATen/ops/scaled_dot_product_attention.h>
#include <torch/nn/modules/normalization.h>

#include "examples/blocks/mlp.h"

namespace blocks {

/// Attention with one matrix for queries, keys and values.
struct GptAttentionImpl : torch::nn::Module {
  GptAttentionImpl(int64_t width, int64_t head_count)
      : heads(head_count), qkv(width, 3 * width), out(width, width) {
    register_module("qkv", qkv);
    register_module("out", out);
  }
  at::Tensor forward(const at::Tensor& x) {
    const auto parts = qkv(x).chunk(3, -1);
    const auto by_head = [&](const at::Tensor& part) {
      return part.unflatten(2, {heads, -1}).transpose(1, 2);  // batch, head, place, feature
    };
    const at::Tensor seen = at::scaled_dot_product_attention(
        by_head(parts[0]), by_head(parts[1]), by_head(parts[2]), {}, 0.0, /*is_causal=*/true);
    return out(seen.transpose(1, 2).flatten(2));
  }

  int64_t heads;
  torch::nn::Linear qkv, out;
};
TORCH_MODULE(GptAttention);

struct GptBlockImpl : torch::nn::Module {
  GptBlockImpl(int64_t width, int64_t heads, int64_t hidden)
      : attention_norm(torch::nn::LayerNormOptions({width})),
        mlp_norm(torch::nn::LayerNormOptions({width})),
        attention(width, heads),
        mlp(width, hidden) {
    register_module("attention_norm", attention_norm);
    register_module("mlp_norm", mlp_norm);
    register_module("attention", attention);
    register_module("mlp", mlp);
  }
  at::Tensor forward(const at::Tensor& given) {
    const at::Tensor x = given + attention(attention_norm(given));
    return x + mlp(mlp_norm(x));
  }

  torch::nn::LayerNorm attention_norm, mlp_norm;
  GptAttention attention;
  Mlp mlp;
};
TORCH_MODULE(GptBlock);

}  // namespace blocks
