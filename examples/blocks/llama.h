#pragma once

#include <ATen/ops/cat.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/rsqrt.h>
#include <ATen/ops/scaled_dot_product_attention.h>
#include <ATen/ops/silu.h>
#include <torch/nn/module.h>
#include <torch/nn/modules/container/modulelist.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>

#include <cmath>

namespace blocks {

struct LlamaSizes {
  int64_t width = 24;
  int64_t heads = 12;
  int64_t kv_heads = 12;
  int64_t hidden = 40;
  int64_t vocabulary = 50;
  int64_t layers = 1;
};

/// Root mean square norm, written out.
struct RmsNormImpl : torch::nn::Module {
  explicit RmsNormImpl(int64_t width) { weight = register_parameter("weight", at::ones({width})); }
  at::Tensor forward(const at::Tensor& x) {
    return x * at::rsqrt(x.pow(2).mean(-1, /*keepdim=*/true) + 1e-6) * weight;
  }

  at::Tensor weight;
};
TORCH_MODULE(RmsNorm);

/// Rotary embedding of [batch, head, place, feature], by tables [place, feature].
inline at::Tensor rotate(const at::Tensor& x, const at::Tensor& cos, const at::Tensor& sin) {
  const auto halves = x.chunk(2, -1);
  return x * cos + at::cat({-halves[1], halves[0]}, -1) * sin;
}

/// Grouped-query attention.
struct LlamaAttentionImpl : torch::nn::Module {
  explicit LlamaAttentionImpl(const LlamaSizes& s)
      : sizes(s),
        wq(torch::nn::LinearOptions(s.width, s.width).bias(false)),
        wk(torch::nn::LinearOptions(s.width, s.width / s.heads * s.kv_heads).bias(false)),
        wv(torch::nn::LinearOptions(s.width, s.width / s.heads * s.kv_heads).bias(false)),
        wo(torch::nn::LinearOptions(s.width, s.width).bias(false)) {
    register_module("wq", wq);
    register_module("wk", wk);
    register_module("wv", wv);
    register_module("wo", wo);
  }
  at::Tensor forward(const at::Tensor& x, const at::Tensor& cos, const at::Tensor& sin) {
    const auto by_head = [&](torch::nn::Linear& layer, int64_t heads) {
      return layer(x).unflatten(2, {heads, -1}).transpose(1, 2);
    };
    const int64_t group = sizes.heads / sizes.kv_heads;
    const at::Tensor q = rotate(by_head(wq, sizes.heads), cos, sin);
    const at::Tensor k = rotate(by_head(wk, sizes.kv_heads), cos, sin).repeat_interleave(group, 1);
    const at::Tensor v = by_head(wv, sizes.kv_heads).repeat_interleave(group, 1);
    const at::Tensor seen = at::scaled_dot_product_attention(q, k, v, {}, 0.0, /*is_causal=*/true);
    return wo(seen.transpose(1, 2).flatten(2));
  }

  LlamaSizes sizes;
  torch::nn::Linear wq, wk, wv, wo;
};
TORCH_MODULE(LlamaAttention);

struct SwiGluImpl : torch::nn::Module {
  explicit SwiGluImpl(const LlamaSizes& s)
      : gate(torch::nn::LinearOptions(s.width, s.hidden).bias(false)),
        up(torch::nn::LinearOptions(s.width, s.hidden).bias(false)),
        down(torch::nn::LinearOptions(s.hidden, s.width).bias(false)) {
    register_module("gate", gate);
    register_module("up", up);
    register_module("down", down);
  }
  at::Tensor forward(const at::Tensor& x) { return down(at::silu(gate(x)) * up(x)); }

  torch::nn::Linear gate, up, down;
};
TORCH_MODULE(SwiGlu);

struct LlamaBlockImpl : torch::nn::Module {
  explicit LlamaBlockImpl(const LlamaSizes& s)
      : attention_norm(s.width), mlp_norm(s.width), attention(s), mlp(s) {
    register_module("attention_norm", attention_norm);
    register_module("mlp_norm", mlp_norm);
    register_module("attention", attention);
    register_module("mlp", mlp);
  }
  at::Tensor forward(const at::Tensor& given, const at::Tensor& cos, const at::Tensor& sin) {
    const at::Tensor x = given + attention(attention_norm(given), cos, sin);
    return x + mlp(mlp_norm(x));
  }

  RmsNorm attention_norm, mlp_norm;
  LlamaAttention attention;
  SwiGlu mlp;
};
TORCH_MODULE(LlamaBlock);

/// Token embedding, blocks, norm and output head.
struct LlamaImpl : torch::nn::Module {
  explicit LlamaImpl(const LlamaSizes& s)
      : embedding(s.vocabulary, s.width),
        norm(s.width),
        head(torch::nn::LinearOptions(s.width, s.vocabulary).bias(false)) {
    register_module("embedding", embedding);
    for (int64_t i = 0; i < s.layers; ++i) layers->push_back(LlamaBlock(s));
    register_module("layers", layers);
    register_module("norm", norm);
    register_module("head", head);
  }
  /// tokens [batch, place] -> logits [batch, place, vocabulary].
  at::Tensor forward(const at::Tensor& tokens, const at::Tensor& cos, const at::Tensor& sin) {
    at::Tensor x = embedding(tokens);
    for (const auto& layer : *layers) x = layer->as<LlamaBlock>()->forward(x, cos, sin);
    return head(norm(x));
  }

  torch::nn::Embedding embedding;
  torch::nn::ModuleList layers;
  RmsNorm norm;
  torch::nn::Linear head;
};
TORCH_MODULE(Llama);

}  // namespace blocks
