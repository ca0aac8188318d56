#pragma once

#include <torch/nn/module.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/container/modulelist.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/normalization.h>

#include <functional>
#include <memory>
#include <vector>

#include "tests/support/training.h"

/// Small models of plain torch::nn, float64, with the same values on every rank.
namespace tessera::test {

struct Batch {
  at::Tensor x;
  at::Tensor y;
  /// The rows of one of `of` ranks.
  Batch part(int64_t index, int64_t of) const {
    const int64_t rows = x.size(0) / of;
    return {x.narrow(0, index * rows, rows), y.narrow(0, index * rows, rows)};
  }
};

inline Batch make_batch(int64_t rows, int64_t in, int64_t out) {
  return {test_numbers({rows, in}, 71), test_numbers({rows, out}, 72)};
}

/// Linear layers with tanh between them.
inline torch::nn::Sequential make_mlp(const std::vector<int64_t>& widths, uint64_t seed = 1) {
  torch::nn::Sequential net;
  for (size_t i = 0; i + 1 < widths.size(); ++i) {
    if (i > 0) net->push_back(torch::nn::Tanh());
    net->push_back(torch::nn::Linear(widths[i], widths[i + 1]));
  }
  set_parameters(*net, seed);
  return net;
}

inline std::vector<torch::nn::LinearImpl*> layers_of(torch::nn::Sequential& net) {
  std::vector<torch::nn::LinearImpl*> out;
  for (const auto& module : net->modules(/*include_self=*/false)) {
    if (auto* linear = module->as<torch::nn::LinearImpl>()) out.push_back(linear);
  }
  return out;
}

/// Of an MLP whose layers cannot be split evenly.
inline const std::vector<int64_t> kWidths = {6, 10, 7, 3};

/// Pre-norm attention over earlier places, then two layers.
struct GptBlockImpl : torch::nn::Module {
  GptBlockImpl(int64_t width, int64_t heads_) : heads(heads_) {
    const auto linear = [&](const char* name, int64_t in, int64_t out) {
      return register_module(name, torch::nn::Linear(in, out));
    };
    query = linear("query", width, width);
    key = linear("key", width, width);
    value = linear("value", width, width);
    out = linear("out", width, width);
    up = linear("up", width, 2 * width);
    down = linear("down", 2 * width, width);
    const auto options = torch::nn::LayerNormOptions({width});
    before_attention = register_module("before_attention", torch::nn::LayerNorm(options));
    before_layers = register_module("before_layers", torch::nn::LayerNorm(options));
  }
  at::Tensor forward(at::Tensor x) {
    const at::Tensor normed = before_attention(x);
    const auto by_head = [&](torch::nn::Linear& layer) {
      return layer(normed).unflatten(2, {heads, -1}).transpose(1, 2);
    };
    const at::Tensor seen = at::scaled_dot_product_attention(by_head(query), by_head(key),
                                                             by_head(value), {}, 0.0, true);
    x = x + out(seen.transpose(1, 2).flatten(2));
    return x + down(at::gelu(up(before_layers(x))));
  }

  int64_t heads;
  torch::nn::Linear query{nullptr}, key{nullptr}, value{nullptr}, out{nullptr}, up{nullptr},
      down{nullptr};
  torch::nn::LayerNorm before_attention{nullptr}, before_layers{nullptr};
};
TORCH_MODULE(GptBlock);

/// Tokens, batch x places -> the mean cross-entropy of the tokens after them. The table of tokens
/// is also the head.
struct GptImpl : torch::nn::Module {
  static constexpr int64_t kTokens = 11, kPlaces = 5, kWidth = 8, kHeads = 2, kBlocks = 2;

  GptImpl() {
    token = register_module("token", torch::nn::Embedding(kTokens, kWidth));
    place = register_parameter("place", at::empty({kPlaces, kWidth}));
    for (int64_t i = 0; i < kBlocks; ++i) blocks->push_back(GptBlock(kWidth, kHeads));
    register_module("blocks", blocks);
    norm = register_module("norm", torch::nn::LayerNorm(torch::nn::LayerNormOptions({kWidth})));
    set_parameters(*this, 21);
  }
  at::Tensor loss(const Batch& batch) {
    at::Tensor x = token(batch.x) + place;
    for (const auto& block : *blocks) x = block->as<GptBlock>()->forward(x);
    const at::Tensor logits = at::linear(norm(x), token->weight);
    return at::cross_entropy_loss(logits.flatten(0, 1), batch.y.flatten());
  }

  torch::nn::Embedding token{nullptr};
  at::Tensor place;
  torch::nn::ModuleList blocks;
  torch::nn::LayerNorm norm{nullptr};
};
TORCH_MODULE(Gpt);

/// A mixture of experts: each row goes to the two of four that the router likes best. An expert to
/// which a rank's rows do not go computes with none.
struct MoeImpl : torch::nn::Module {
  static constexpr int64_t kWidth = 6, kHidden = 10, kExperts = 4, kTaken = 2;

  MoeImpl() {
    router = register_module("router", torch::nn::Linear(kWidth, kExperts));
    for (int64_t i = 0; i < kExperts; ++i) {
      experts->push_back(torch::nn::Sequential(torch::nn::Linear(kWidth, kHidden),
                                               torch::nn::GELU(),
                                               torch::nn::Linear(kHidden, kWidth)));
    }
    register_module("experts", experts);
    set_parameters(*this, 41);
  }
  at::Tensor loss(const Batch& batch) {
    const at::Tensor logits = router(batch.x);
    const auto [share, taken] = logits.softmax(1).topk(kTaken, 1);
    at::Tensor y = batch.x;
    for (int64_t i = 0; i < kExperts; ++i) {
      const at::Tensor here = taken.eq(i);
      const at::Tensor rows = here.any(1).nonzero().squeeze(1);
      const at::Tensor weight = (share * here).sum(1, true).index_select(0, rows);
      const at::Tensor out = experts[static_cast<size_t>(i)]->as<torch::nn::Sequential>()->forward(
          batch.x.index_select(0, rows));
      y = y.index_add(0, rows, out * weight);
    }
    return at::mse_loss(y, batch.y) + 0.01 * logits.logsumexp(1).pow(2).mean();
  }

  torch::nn::Linear router{nullptr};
  torch::nn::ModuleList experts;
};
TORCH_MODULE(Moe);

/// A model with its loss and the modules that are groups of their own; the rest is one more.
struct Model {
  std::shared_ptr<torch::nn::Module> module;
  std::function<at::Tensor(const Batch&)> loss;
  std::vector<std::shared_ptr<torch::nn::Module>> parts;
};

/// How to make a model, and what to train it with: 24 rows, which 2, 3, 4 and 8 ranks can share.
struct Subject {
  const char* name;
  std::function<Model()> make;
  Batch batch;
};

inline Subject mlp_subject(const std::vector<int64_t>& widths = kWidths) {
  const auto make = [widths] {
    auto net = make_mlp(widths);
    Model model{net.ptr(),
                [net](const Batch& b) mutable { return at::mse_loss(net->forward(b.x), b.y); },
                {}};
    for (const auto& module : net->modules(/*include_self=*/false)) {
      if (module->as<torch::nn::LinearImpl>() != nullptr) model.parts.push_back(module);
    }
    return model;
  };
  return {"MLP", make, make_batch(24, widths.front(), widths.back())};
}

inline Subject gpt_subject() {
  const auto make = [] {
    Gpt net;
    return Model{net.ptr(), [net](const Batch& b) mutable { return net->loss(b); },
                 net->blocks->children()};
  };
  const std::vector<int64_t> shape = {24, GptImpl::kPlaces};
  return {"GPT",
          make,
          {test_numbers(shape, 51, GptImpl::kTokens), test_numbers(shape, 52, GptImpl::kTokens)}};
}

inline Subject moe_subject() {
  const auto make = [] {
    Moe net;
    return Model{net.ptr(), [net](const Batch& b) mutable { return net->loss(b); },
                 net->experts->children()};
  };
  return {"MoE", make, make_batch(24, MoeImpl::kWidth, MoeImpl::kWidth)};
}

}  // namespace tessera::test
