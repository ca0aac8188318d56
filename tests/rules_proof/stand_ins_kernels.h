#pragma once

#include "tests/rules_proof/stand_ins.h"

/// Products, convolutions, norms and cells of which the CPU has no kernel, or one for a few types
/// only.
namespace tessera::test::kernels {

inline at::ScalarType dtype(const Arguments& a) { return a["out_dtype"].toScalarType(); }

inline Results mm_dtype(const Arguments& a) {
  return {at::mm(a.tensor("self").to(dtype(a)), a.tensor("mat2").to(dtype(a)))};
}
inline Results bmm_dtype(const Arguments& a) {
  return {at::bmm(a.tensor("self").to(dtype(a)), a.tensor("mat2").to(dtype(a)))};
}
inline Results addmm_dtype(const Arguments& a) {
  return {at::addmm(a.tensor("self").to(dtype(a)), a.tensor("mat1").to(dtype(a)),
                    a.tensor("mat2").to(dtype(a)), a["beta"].toScalar(), a["alpha"].toScalar())};
}
inline Results baddbmm_dtype(const Arguments& a) {
  return {at::baddbmm(a.tensor("self").to(dtype(a)), a.tensor("batch1").to(dtype(a)),
                      a.tensor("batch2").to(dtype(a)), a["beta"].toScalar(),
                      a["alpha"].toScalar())};
}

inline Results linear_backward(const Arguments& a) {
  const at::Tensor x = a.tensor("self"), w = a.tensor("weight");
  const bool is_row = w.dim() == 1;
  const at::Tensor grad = is_row ? a.tensor("grad_output").unsqueeze(-1) : a.tensor("grad_output");
  const at::Tensor rows = x.flatten(0, -2), of_rows = grad.flatten(0, -2);
  const at::Tensor of_weight = at::mm(of_rows.t(), rows), of_bias = of_rows.sum(0);
  return {at::matmul(grad, is_row ? w.unsqueeze(0) : w), is_row ? of_weight.squeeze(0) : of_weight,
          is_row ? of_bias.squeeze(0) : of_bias};
}

/// Every element of the operand with its scale: one for all, for a row, a column or a block.
inline at::Tensor scaled(const at::Tensor& x, const at::Tensor& scale) {
  if (scale.numel() == 1) return x * scale.reshape({});
  at::Tensor all = scale;
  for (const int64_t dim : {0, 1}) {
    if (x.size(dim) == 0)
      all = all.narrow(dim, 0, 0);
    else if (all.size(dim) != 1)
      all = all.repeat_interleave(x.size(dim) / all.size(dim), dim);
  }
  return x * all;
}

inline Results scaled_mm(const Arguments& a) {
  at::Tensor out = at::mm(scaled(a.tensor("self"), a.tensor("scale_a")),
                          scaled(a.tensor("mat2"), a.tensor("scale_b")));
  if (const at::Tensor bias = a.tensor("bias"); bias.defined()) out = out + bias;
  return {out};
}

/// Groups of rows (2d x 3d), of columns (3d x 2d) or of the summed dim (2d x 2d) end at offsets.
inline at::Tensor grouped(const at::Tensor& x, const at::Tensor& w, const at::Tensor& offsets) {
  if (x.dim() == 3 && w.dim() == 3) return at::bmm(x, w);
  Results parts;
  int64_t begin = 0;
  for (int64_t g = 0; g < offsets.numel(); ++g) {
    const int64_t size = offsets[g].item<int64_t>() - begin;
    if (w.dim() == 3)
      parts.push_back(at::mm(x.narrow(0, begin, size), w[g]));
    else if (x.dim() == 3)
      parts.push_back(at::mm(x[g], w.narrow(1, begin, size)));
    else
      parts.push_back(at::mm(x.narrow(1, begin, size), w.narrow(0, begin, size)));
    begin += size;
  }
  if (x.dim() == 2 && w.dim() == 2) return at::stack(parts);
  return at::cat(parts, w.dim() == 3 ? 0 : 1);
}

inline Results grouped_mm(const Arguments& a) {
  return {grouped(a.tensor("self"), a.tensor("mat2"), a.tensor("offs"))};
}

inline Results scaled_grouped_mm(const Arguments& a) {
  const at::Tensor x = a.tensor("self") * a.tensor("scale_a").unsqueeze(-1);
  const at::Tensor w = a.tensor("mat2") * a.tensor("scale_b").unsqueeze(-2);
  return {grouped(x, w, a.tensor("offs"))};
}

/// The bits of a packed weight in any order: two numbers of four bits in each byte, a scale and a
/// zero for each group of `qGroupSize` along k.
inline Results int4pack_mm(const Arguments& a) {
  const at::Tensor x = a.tensor("self"), factors = a.tensor("qScaleAndZeros");
  const at::Tensor bytes = a.tensor("mat2").contiguous().view(at::kByte).flatten();
  const at::Tensor digits = at::stack({bytes.bitwise_and(15), bytes.div(16, "floor")}, -1);
  const int64_t n = factors.size(1), k = digits.numel() / n;
  const auto each = [&](int64_t which) {
    return factors.select(2, which).t().repeat_interleave(k / factors.size(0), 1);
  };
  const at::Tensor w = (digits.reshape({n, k}).to(x.scalar_type()) - 8) * each(0) + each(1);
  return {at::mm(x, w.t())};
}

inline Results int8pack_mm(const Arguments& a) {
  const at::Tensor x = a.tensor("self");
  return {at::mm(x, a.tensor("mat2").to(x.scalar_type()).t()) * a.tensor("scales")};
}

inline at::Tensor convolved(const Arguments& a, const char* input, int64_t groups, bool transposed,
                            std::vector<int64_t> output_padding) {
  const at::Tensor bias = a.tensor("bias");
  return at::convolution(a.tensor(input), a.tensor("weight"),
                         bias.defined() ? std::optional(bias) : std::nullopt,
                         a["stride"].toIntVector(), a["padding"].toIntVector(),
                         a["dilation"].toIntVector(), transposed, output_padding, groups);
}

inline Results convolution(const Arguments& a) {
  return {convolved(a, "input", a["groups"].toInt(), a["transposed"].toBool(),
                    a["output_padding"].toIntVector())};
}
inline Results depthwise(const Arguments& a) {
  const at::Tensor x = a.tensor("self");
  return {convolved(a, "self", x.size(1), false,
                    std::vector<int64_t>(static_cast<size_t>(x.dim() - 2), 0))};
}
inline Results convolution_backward(const Arguments& a) {
  const at::Tensor grad = a.tensor("grad_output");
  const auto [x, w, b] = at::convolution_backward(
      grad, a.tensor("input"), a.tensor("weight"), at::IntArrayRef({grad.size(1)}),
      a["stride"].toIntVector(), a["padding"].toIntVector(), a["dilation"].toIntVector(),
      a["transposed"].toBool(), a["output_padding"].toIntVector(), a["groups"].toInt(),
      {true, true, true});
  return {x, w, b};
}

// The pieces of a batch norm over several devices: statistics of all dims but the channels.

inline std::vector<int64_t> all_but_channels(const at::Tensor& x) {
  std::vector<int64_t> out;
  for (int64_t d = 0; d < x.dim(); ++d) {
    if (d != 1) out.push_back(d);
  }
  return out;
}
inline at::Tensor by_channel(const at::Tensor& c, const at::Tensor& x) {
  std::vector<int64_t> shape(static_cast<size_t>(x.dim()), 1);
  shape[1] = -1;
  return c.view(shape);
}
inline Results batch_norm_stats(const Arguments& a) {
  const at::Tensor x = a.tensor("input");
  const auto [var, mean] = at::var_mean(x, all_but_channels(x), /*correction=*/0);
  return {mean, at::rsqrt(var + a.real("eps"))};
}
inline at::Tensor normalized(const Arguments& a) {
  const at::Tensor x = a.tensor("input");
  return (x - by_channel(a.tensor("mean"), x)) * by_channel(a.tensor("invstd"), x);
}
inline Results batch_norm_elemt(const Arguments& a) {
  at::Tensor out = normalized(a);
  if (a.tensor("weight").defined()) out = out * by_channel(a.tensor("weight"), out);
  if (a.tensor("bias").defined()) out = out + by_channel(a.tensor("bias"), out);
  return {out};
}
/// Means and variances of parts, weighed by how many elements each has.
inline Results gathered(const Arguments& a, const at::Tensor& counts) {
  const at::Tensor mean = a.tensor("mean"), eps = at::scalar_tensor(a.real("eps"), mean.options());
  const at::Tensor var = a.tensor("invstd").pow(-2) - eps, n = counts.unsqueeze(1);
  const at::Tensor all = (mean * n).sum(0) / n.sum();
  const at::Tensor spread = ((var + (mean - all).pow(2)) * n).sum(0) / n.sum();
  return {all, at::rsqrt(spread + eps)};
}
inline Results batch_norm_gather_stats(const Arguments& a) {
  const at::Tensor mean = a.tensor("mean");
  return gathered(a, at::full({mean.size(0)}, a.real("count"), mean.options()));
}
inline Results batch_norm_gather_stats_with_counts(const Arguments& a) {
  return gathered(a, a.tensor("counts"));
}
inline Results batch_norm_backward_reduce(const Arguments& a) {
  const at::Tensor x = a.tensor("input"), grad = a.tensor("grad_out");
  const auto dims = all_but_channels(x);
  const at::Tensor sum = grad.sum(dims);
  const at::Tensor moment = (grad * (x - by_channel(a.tensor("mean"), x))).sum(dims);
  return {sum, moment, moment * a.tensor("invstd"), sum};
}
inline Results batch_norm_backward_elemt(const Arguments& a) {
  const at::Tensor x = a.tensor("input"), invstd = a.tensor("invstd");
  const at::Tensor n = a.tensor("count").sum();
  const at::Tensor along = a.tensor("sum_dy_xmu") / n * invstd * invstd;
  at::Tensor out = a.tensor("grad_out") - by_channel(a.tensor("sum_dy") / n, x) -
                   (x - by_channel(a.tensor("mean"), x)) * by_channel(along, x);
  out = out * by_channel(invstd, x);
  return {a.tensor("weight").defined() ? out * by_channel(a.tensor("weight"), x) : out};
}

inline Results rms_norm_backward(const Arguments& a) {
  const at::Tensor x = a.tensor("input"), grad = a.tensor("grad_out"), rstd = a.tensor("rstd");
  const at::Tensor w = a.tensor("weight");
  const auto inner = static_cast<int64_t>(a["normalized_shape"].toIntVector().size());
  std::vector<int64_t> dims, rest;
  for (int64_t d = 0; d < x.dim(); ++d) (d < x.dim() - inner ? rest : dims).push_back(d);
  const at::Tensor g = w.defined() ? grad * w : grad;
  const at::Tensor dx = rstd * (g - x * rstd * rstd * (g * x).mean(dims, true));
  return {dx, w.defined() ? (grad * x * rstd).sum(rest) : at::Tensor()};
}

inline Results masked_scale(const Arguments& a) {
  return {a.tensor("self") * a.tensor("mask") * a.real("scale")};
}

// Cells: gates come as blocks of columns.

inline at::Tensor gates(const Arguments& a, const char* what, const char* bias) {
  const at::Tensor b = a.tensor(bias);
  return b.defined() ? a.tensor(what) + b : a.tensor(what);
}
inline Results lstm_cell(const Arguments& a) {
  const at::Tensor all =
      gates(a, "input_gates", "input_bias") + gates(a, "hidden_gates", "hidden_bias");
  const auto g = all.chunk(4, 1);
  const at::Tensor i = g[0].sigmoid(), f = g[1].sigmoid(), c = g[2].tanh(), o = g[3].sigmoid();
  const at::Tensor cy = f * a.tensor("cx") + i * c;
  return {o * cy.tanh(), cy, at::cat({i, f, c, o}, 1)};
}
inline Results lstm_cell_backward(const Arguments& a) {
  const at::Tensor cx = a.tensor("cx"), cy = a.tensor("cy");
  const auto w = a.tensor("workspace").chunk(4, 1);
  const at::Tensor &i = w[0], &f = w[1], &c = w[2], &o = w[3], t = cy.tanh();
  const at::Tensor dh = a.tensor("grad_hy").defined() ? a.tensor("grad_hy") : at::zeros_like(cy);
  at::Tensor dc = dh * o * (1 - t * t);
  if (a.tensor("grad_cy").defined()) dc = dc + a.tensor("grad_cy");
  const at::Tensor grads = at::cat(
      {dc * c * i * (1 - i), dc * cx * f * (1 - f), dc * i * (1 - c * c), dh * t * o * (1 - o)}, 1);
  return {grads, dc * f, a["has_bias"].toBool() ? grads.sum(0) : at::Tensor()};
}
inline Results gru_cell(const Arguments& a) {
  const auto x = gates(a, "input_gates", "input_bias").chunk(3, 1);
  const auto h = gates(a, "hidden_gates", "hidden_bias").chunk(3, 1);
  const at::Tensor hx = a.tensor("hx");
  const at::Tensor r = (x[0] + h[0]).sigmoid(), z = (x[1] + h[1]).sigmoid();
  const at::Tensor n = (x[2] + r * h[2]).tanh();
  return {n + z * (hx - n), at::cat({r, z, n, hx, h[2]}, 1)};
}
inline Results gru_cell_backward(const Arguments& a) {
  const at::Tensor dh = a.tensor("grad_hy");
  const auto w = a.tensor("workspace").chunk(5, 1);
  const at::Tensor &r = w[0], &z = w[1], &n = w[2], &hx = w[3], &hn = w[4];
  const at::Tensor dz = dh * (hx - n) * z * (1 - z), dn = dh * (1 - z) * (1 - n * n);
  const at::Tensor dr = dn * hn * r * (1 - r);
  const at::Tensor of_x = at::cat({dr, dz, dn}, 1), of_h = at::cat({dr, dz, dn * r}, 1);
  const bool bias = a["has_bias"].toBool();
  return {of_x, of_h, dh * z, bias ? of_x.sum(0) : at::Tensor(), bias ? of_h.sum(0) : at::Tensor()};
}

// Memory as it is: zeros stand for it.

inline Results empty_like(const Arguments& a) { return {at::zeros_like(a.tensor("self"))}; }
inline Results new_empty(const Arguments& a) {
  return {a.tensor("self").new_zeros(a["size"].toIntVector())};
}
inline Results copy(const Arguments& a) { return {a.tensor("self").clone()}; }

inline const StandIns kStandIns = {
    {"aten::mm.dtype", mm_dtype},
    {"aten::bmm.dtype", bmm_dtype},
    {"aten::addmm.dtype", addmm_dtype},
    {"aten::baddbmm.dtype", baddbmm_dtype},
    {"aten::linear_backward", linear_backward},
    {"aten::_scaled_mm", scaled_mm},
    {"aten::_grouped_mm", grouped_mm},
    {"aten::_scaled_grouped_mm", scaled_grouped_mm},
    {"aten::_weight_int4pack_mm", int4pack_mm},
    {"aten::_weight_int4pack_mm_for_cpu", int4pack_mm},
    {"aten::_weight_int8pack_mm", int8pack_mm},
    {"aten::convolution_overrideable", convolution},
    {"aten::convolution_backward_overrideable", convolution_backward},
    {"aten::_conv_depthwise2d", depthwise},
    {"aten::conv_depthwise3d", depthwise},
    {"aten::batch_norm_stats", batch_norm_stats},
    {"aten::batch_norm_elemt", batch_norm_elemt},
    {"aten::batch_norm_gather_stats", batch_norm_gather_stats},
    {"aten::batch_norm_gather_stats_with_counts", batch_norm_gather_stats_with_counts},
    {"aten::batch_norm_backward_reduce", batch_norm_backward_reduce},
    {"aten::batch_norm_backward_elemt", batch_norm_backward_elemt},
    {"aten::_fused_rms_norm_backward", rms_norm_backward},
    {"aten::_masked_scale", masked_scale},
    {"aten::_thnn_fused_lstm_cell", lstm_cell},
    {"aten::_thnn_fused_lstm_cell_backward_impl", lstm_cell_backward},
    {"aten::_thnn_fused_gru_cell", gru_cell},
    {"aten::_thnn_fused_gru_cell_backward", gru_cell_backward},
    {"aten::empty_like", empty_like},
    {"aten::new_empty", new_empty},
    {"aten::new_empty_strided", new_empty},
    {"aten::_pin_memory", copy},
};

}  // namespace tessera::test::kernels
