#pragma once

#include <limits>

#include "tests/rules_proof/stand_ins.h"

/// Attention as each back-end gives it: the output and the logarithm of the sum of the exponentials
/// of each row, of which the backward makes its weights again.
namespace tessera::test::attention {

/// b x heads x rows x width, with a head of keys for every head of queries.
struct Operands {
  at::Tensor q, k, v, bias;
  bool causal = false;
  double scale = 1;
  int64_t groups = 1;  ///< query heads that share a head of keys
};

inline Operands operands(const Arguments& a, bool heads_last) {
  const auto bhsd = [&](at::Tensor t) { return heads_last ? t.transpose(1, 2) : t; };
  Operands o{bhsd(a.tensor("query")), bhsd(a.tensor("key")), bhsd(a.tensor("value")), {}};
  o.groups = o.q.size(1) / std::max<int64_t>(1, o.k.size(1));
  o.k = o.k.repeat_interleave(o.groups, 1);
  o.v = o.v.repeat_interleave(o.groups, 1);
  o.scale = a.real("scale", 1 / std::sqrt(static_cast<double>(o.q.size(3))));
  return o;
}

inline at::Tensor scores(const Operands& o) {
  at::Tensor s = at::matmul(o.q, o.k.mT()) * o.scale;
  if (o.bias.defined()) s = s + o.bias;
  if (o.causal)
    s = s.masked_fill(at::ones({s.size(2), s.size(3)}, at::kBool).tril().logical_not(),
                      -std::numeric_limits<double>::infinity());
  return s;
}

inline std::pair<at::Tensor, at::Tensor> forward(const Operands& o) {
  const at::Tensor s = scores(o);
  return {at::matmul(at::softmax(s, -1), o.v), at::logsumexp(s, -1)};
}

/// Gradients of q, k, v and the bias.
inline Results backward(const Operands& o, const at::Tensor& grad, const at::Tensor& out,
                        const at::Tensor& lse) {
  const at::Tensor p = at::exp(scores(o) - lse.unsqueeze(-1));
  const at::Tensor ds = p * (at::matmul(grad, o.v.mT()) - (grad * out).sum(-1, /*keepdim=*/true));
  const auto of_keys = [&](const at::Tensor& g) {
    return g.unflatten(1, {g.size(1) / o.groups, o.groups}).sum(2);
  };
  return {at::matmul(ds, o.k) * o.scale, of_keys(at::matmul(ds.mT(), o.q) * o.scale),
          of_keys(at::matmul(p.mT(), grad)), o.bias.defined() ? ds : at::Tensor()};
}

/// Rows as the memory-efficient kernel keeps them: a multiple of 32, the rest infinite.
inline at::Tensor padded(const at::Tensor& lse) {
  return at::constant_pad_nd(lse, {0, (lse.size(2) + 31) / 32 * 32 - lse.size(2)},
                             std::numeric_limits<double>::infinity());
}

inline Results with_empty(Results results, size_t count) {
  results.resize(count);
  return results;
}

inline Results flash(const Arguments& a) {
  Operands o = operands(a, false);
  o.causal = a["is_causal"].toBool();
  const auto [out, lse] = forward(o);
  return with_empty({out, lse}, 9);
}

/// A factor for each batch and head of keys brings 8-bit operands to their size.
inline Results flash_quantized(const Arguments& a) {
  Operands o = operands(a, false);
  o.causal = a["is_causal"].toBool();
  const auto scaled = [&](const at::Tensor& x, const char* name) {
    const at::Tensor factor = a.tensor(name);
    return factor.defined() ? x * factor.repeat_interleave(o.groups, 1).unsqueeze(2).unsqueeze(3)
                            : x;
  };
  o.q = scaled(o.q, "q_descale");
  o.k = scaled(o.k, "k_descale");
  o.v = scaled(o.v, "v_descale");
  const auto [out, lse] = forward(o);
  return with_empty({out, lse}, 9);
}

inline Results flash_backward(const Arguments& a) {
  Operands o = operands(a, false);
  o.causal = a["is_causal"].toBool();
  TORCH_CHECK(a["max_q"].toInt() == o.q.size(2), "max_q is not the number of rows");
  return with_empty(backward(o, a.tensor("grad_out"), a.tensor("out"), a.tensor("logsumexp")), 3);
}

inline Results efficient(const Arguments& a) {
  Operands o = operands(a, false);
  o.causal = a["is_causal"].toBool();
  o.bias = a.tensor("attn_bias");
  const auto [out, lse] = forward(o);
  const bool kept = a["compute_log_sumexp"].toBool();
  return with_empty({out, kept ? padded(lse) : lse.narrow(2, 0, 0)}, 4);
}

inline Results efficient_backward(const Arguments& a) {
  Operands o = operands(a, false);
  o.causal = a["is_causal"].toBool();
  o.bias = a.tensor("attn_bias");
  return backward(o, a.tensor("grad_out_"), a.tensor("out"),
                  a.tensor("logsumexp").narrow(2, 0, o.q.size(2)));
}

inline Results cudnn(const Arguments& a) {
  Operands o = operands(a, false);
  o.causal = a["is_causal"].toBool();
  o.bias = a.tensor("attn_bias");
  const auto [out, lse] = forward(o);
  return with_empty({out, lse.unsqueeze(-1)}, 9);
}

inline Results cudnn_backward(const Arguments& a) {
  Operands o = operands(a, false);
  o.causal = a["is_causal"].toBool();
  o.bias = a.tensor("attn_bias");
  TORCH_CHECK(a["max_q"].toInt() == o.q.size(2), "max_q is not the number of rows");
  return with_empty(
      backward(o, a.tensor("grad_out"), a.tensor("out"), a.tensor("logsumexp").squeeze(-1)), 3);
}

inline Results overrideable(const Arguments& a) {
  Results out = cudnn(a);
  out[1] = out[1].squeeze(-1);
  return out;
}

inline Results overrideable_backward(const Arguments& a) {
  Operands o = operands(a, false);
  o.causal = a["is_causal"].toBool();
  o.bias = a.tensor("attn_bias");
  return backward(o, a.tensor("grad_out"), a.tensor("out"), a.tensor("logsumexp"));
}

// Heads after rows.

inline Results flash_heads_last(const Arguments& a) {
  Operands o = operands(a, true);
  o.causal = a["is_causal"].toBool();
  const auto [out, lse] = forward(o);
  return with_empty({out.transpose(1, 2), lse}, 5);
}

inline Results heads_last(Results grads) {
  for (size_t i = 0; i < 3; ++i) grads[i] = grads[i].transpose(1, 2);
  return grads;
}

inline Results flash_heads_last_backward(const Arguments& a) {
  Operands o = operands(a, true);
  o.causal = a["is_causal"].toBool();
  return with_empty(heads_last(backward(o, a.tensor("grad_out").transpose(1, 2),
                                        a.tensor("out").transpose(1, 2), a.tensor("logsumexp"))),
                    3);
}

inline Results efficient_heads_last(const Arguments& a) {
  Operands o = operands(a, true);
  o.causal = a["custom_mask_type"].toInt() != 0;
  o.bias = a.tensor("bias");
  const auto [out, lse] = forward(o);
  return with_empty({out.transpose(1, 2), padded(lse)}, 6);
}

inline Results efficient_heads_last_backward(const Arguments& a) {
  Operands o = operands(a, true);
  o.causal = a["custom_mask_type"].toInt() != 0;
  o.bias = a.tensor("bias");
  return heads_last(backward(o, a.tensor("grad_out_").transpose(1, 2),
                             a.tensor("out").transpose(1, 2),
                             a.tensor("logsumexp").narrow(2, 0, o.q.size(2))));
}

inline const StandIns kStandIns = {
    {"aten::_scaled_dot_product_flash_attention", flash},
    {"aten::_scaled_dot_product_flash_attention.quantized", flash_quantized},
    {"aten::_scaled_dot_product_flash_attention_backward", flash_backward},
    {"aten::_scaled_dot_product_efficient_attention", efficient},
    {"aten::_scaled_dot_product_efficient_attention_backward", efficient_backward},
    {"aten::_scaled_dot_product_cudnn_attention", cudnn},
    {"aten::_scaled_dot_product_cudnn_attention_backward", cudnn_backward},
    {"aten::_cudnn_attention_forward", cudnn},
    {"aten::_cudnn_attention_backward", cudnn_backward},
    {"aten::_scaled_dot_product_fused_attention_overrideable", overrideable},
    {"aten::_scaled_dot_product_fused_attention_overrideable_backward", overrideable_backward},
    {"aten::_flash_attention_forward", flash_heads_last},
    {"aten::_flash_attention_backward", flash_heads_last_backward},
    {"aten::_efficient_attention_forward", efficient_heads_last},
    {"aten::_efficient_attention_backward", efficient_heads_last_backward},
};

}  // namespace tessera::test::attention
