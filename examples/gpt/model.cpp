#include "model.h"

#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/gelu.h>
#include <ATen/ops/scaled_dot_product_attention.h>

#include "text.h"

namespace gpt {

AttentionImpl::AttentionImpl(const Settings& s)
    : heads(s.heads),
      query(s.width, s.width),
      key(s.width, s.width),
      value(s.width, s.width),
      out(s.width, s.width) {
  register_module("query", query);
  register_module("key", key);
  register_module("value", value);
  register_module("out", out);
}

at::Tensor AttentionImpl::forward(const at::Tensor& x) {
  const auto by_head = [&](torch::nn::Linear& layer) {
    return layer(x).unflatten(2, {heads, -1}).transpose(1, 2);  // batch, head, place, feature
  };
  const at::Tensor seen =
      at::scaled_dot_product_attention(by_head(query), by_head(key), by_head(value), {}, 0.0, true);
  return out(seen.transpose(1, 2).flatten(2));
}

BlockImpl::BlockImpl(const Settings& s)
    : attention_norm(torch::nn::LayerNormOptions({s.width})),
      norm(torch::nn::LayerNormOptions({s.width})),
      attention(s),
      up(s.width, 4 * s.width),
      down(4 * s.width, s.width) {
  register_module("attention_norm", attention_norm);
  register_module("norm", norm);
  register_module("attention", attention);
  register_module("up", up);
  register_module("down", down);
}

at::Tensor BlockImpl::forward(at::Tensor x) {
  x = x + attention(attention_norm(x));
  return x + down(at::gelu(up(norm(x))));
}

GptImpl::GptImpl(const Settings& s)
    : token(kBytes, s.width),
      norm(torch::nn::LayerNormOptions({s.width})),
      head(torch::nn::LinearOptions(s.width, kBytes).bias(false)) {
  register_module("token", token);
  position = register_parameter("position", at::empty({s.context, s.width}));
  for (int64_t i = 0; i < s.layers; ++i) blocks->push_back(Block(s));
  register_module("blocks", blocks);
  register_module("norm", norm);
  register_module("head", head);
}

at::Tensor GptImpl::forward(const at::Tensor& bytes) {
  at::Tensor x = token(bytes) + position.narrow(0, 0, bytes.size(1));
  for (const auto& block : *blocks) x = block->as<Block>()->forward(x);
  return head(norm(x));
}

at::Tensor GptImpl::loss(const at::Tensor& bytes, const at::Tensor& targets) {
  return at::cross_entropy_loss(forward(bytes).flatten(0, 1), targets.flatten());
}

}  // namespace gpt
