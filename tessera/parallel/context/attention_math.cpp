#include "tessera/parallel/context/attention_math.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <limits>

namespace tessera::parallel {
namespace {

constexpr int64_t kMaxScores = int64_t{1} << 22;
constexpr double kMinusInfinity = -std::numeric_limits<double>::infinity();

at::ScalarType math_dtype(const at::Tensor& t) {
  return t.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
}

/// B x heads of keys x queries of each x rows x width: heads of keys broadcast over their queries.
at::Tensor by_key_head(const at::Tensor& t, int64_t key_heads) {
  return t.to(math_dtype(t))
      .reshape({t.size(0), key_heads, t.size(1) / key_heads, t.size(2), t.size(3)});
}

/// The arguments with heads grouped, and slices of query rows.
struct Grouped {
  explicit Grouped(const KernelInputs& given)
      : in(given),
        query(by_key_head(in.query, in.key.size(1))),
        key(in.key.to(math_dtype(in.key)).unsqueeze(2)),
        value(in.value.to(math_dtype(in.value)).unsqueeze(2)),
        rows(query.size(3)),
        slice(std::max<int64_t>(
            1, kMaxScores /
                   std::max<int64_t>(1, in.query.size(0) * in.query.size(1) * key.size(3)))) {}

  at::Tensor scores(int64_t begin, int64_t count) const {
    at::Tensor s = at::matmul(query.narrow(3, begin, count), key.transpose(-1, -2)).mul_(in.scale);
    if (in.mask) {
      const at::Tensor& mask = *in.mask;
      const at::Tensor part = mask.size(2) == 1 ? mask : mask.narrow(2, begin, count);
      s = s.add(part.expand({part.size(0), s.size(1) * s.size(2), part.size(2), part.size(3)})
                    .reshape({part.size(0), s.size(1), s.size(2), part.size(2), part.size(3)}));
    }
    if (in.causal) {
      const at::Tensor seen =
          at::ones({count, key.size(3)}, s.options().dtype(at::kBool)).tril(begin);
      s = s.masked_fill(seen.logical_not(), kMinusInfinity);
    }
    return s;
  }

  const KernelInputs& in;
  at::Tensor query, key, value;
  int64_t rows;
  int64_t slice;
};

/// Rows without a key have -inf: exp(-inf - 0) is 0 where exp(-inf + inf) is not a number.
at::Tensor finite(const at::Tensor& lse) { return lse.masked_fill(lse.eq(kMinusInfinity), 0); }

}  // namespace

KernelOutputs attend_math(const KernelInputs& in) {
  const Grouped g(in);
  std::vector<int64_t> shape = {in.query.size(0), in.query.size(1), g.rows, in.value.size(3)};
  const at::Tensor out = at::empty(shape, g.query.options());
  const at::Tensor lse = at::empty({shape[0], shape[1], shape[2]}, g.query.options());
  for (int64_t begin = 0; begin < g.rows; begin += g.slice) {
    const int64_t count = std::min(g.slice, g.rows - begin);
    const at::Tensor s = g.scores(begin, count);
    const at::Tensor sum = s.logsumexp(-1);
    const at::Tensor p = s.sub(finite(sum).unsqueeze(-1)).exp_();
    out.narrow(2, begin, count).copy_(at::matmul(p, g.value).flatten(1, 2));
    lse.narrow(2, begin, count).copy_(sum.flatten(1, 2));
  }
  return {out.to(in.query.scalar_type()), lse};
}

KernelGradients attend_math_backward(const KernelInputs& in, const at::Tensor& grad_out,
                                     const at::Tensor& out, const at::Tensor& log_sum_exp) {
  const Grouped g(in);
  const int64_t heads = in.key.size(1);
  const at::Tensor grad = by_key_head(grad_out, heads);
  const at::Tensor delta = grad.mul(by_key_head(out, heads)).sum(-1, /*keepdim=*/true);
  const at::Tensor lse =
      finite(log_sum_exp).to(g.query.scalar_type()).unsqueeze(-1).reshape(delta.sizes());
  const at::Tensor d_query = at::empty(g.query.sizes(), g.query.options());
  const at::Tensor d_key = at::zeros(in.key.sizes(), g.query.options());
  const at::Tensor d_value = at::zeros(in.value.sizes(), g.query.options());
  for (int64_t begin = 0; begin < g.rows; begin += g.slice) {
    const int64_t count = std::min(g.slice, g.rows - begin);
    const at::Tensor p = g.scores(begin, count).sub(lse.narrow(3, begin, count)).exp_();
    const at::Tensor part = grad.narrow(3, begin, count);
    d_value.add_(at::matmul(p.transpose(-1, -2), part).sum(2));
    const at::Tensor d_scores = at::matmul(part, g.value.transpose(-1, -2))
                                    .sub_(delta.narrow(3, begin, count))
                                    .mul_(p)
                                    .mul_(in.scale);
    d_query.narrow(3, begin, count).copy_(at::matmul(d_scores, g.key));
    d_key.add_(at::matmul(d_scores.transpose(-1, -2), g.query.narrow(3, begin, count)).sum(2));
  }
  const auto dtype = in.query.scalar_type();
  return {d_query.flatten(1, 2).to(dtype), d_key.to(dtype), d_value.to(dtype)};
}

}  // namespace tessera::parallel
