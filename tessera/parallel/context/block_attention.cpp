#include "tessera/parallel/context/block_attention.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/full.h>
#include <ATen/ops/logaddexp.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <array>
#include <limits>

#include "tessera/base/errors.h"
#include "tessera/base/text.h"

namespace tessera::parallel {
namespace {

constexpr double kNoKey = -std::numeric_limits<double>::infinity();
/// Elements of one tile's mask, by batch and head: masked tiles are split into rows, so that a mask
/// never grows with the square of the sequence.
constexpr int64_t kMaxMaskTile = int64_t{1} << 18;

bool is_masked(const BlockProblem& problem) {
  return problem.mask.defined() || problem.mask_function != nullptr;
}

/// A tile and, if it is masked, where the causal diagonal of its first row is.
struct Call {
  Tile tile;
  bool causal = false;       // by the kernel
  int64_t mask_offset = -1;  // >= 0: row i of the tile attends to keys 0..i + mask_offset
};

std::vector<Call> calls_of(const BlockProblem& problem, const RowSet& keys) {
  const auto tiles = attention_tiles({.queries = problem.queries.positions,
                                      .keys = keys.positions,
                                      .causal = problem.causal,
                                      .documents = problem.documents});
  std::vector<Call> calls;
  for (const Tile& tile : tiles) {
    if (!is_masked(problem)) {
      calls.push_back({tile, tile.diagonal});
      continue;
    }
    const int64_t rows = std::max<int64_t>(1, kMaxMaskTile / tile.keys.size());
    for (int64_t begin = tile.queries.begin; begin < tile.queries.end; begin += rows) {
      Call call{tile};
      call.tile.queries = {begin, std::min(begin + rows, tile.queries.end)};
      if (tile.diagonal) {
        call.mask_offset = begin - tile.queries.begin;
        call.tile.keys.end = tile.keys.begin + (call.tile.queries.end - tile.queries.begin);
      }
      calls.push_back(std::move(call));
    }
  }
  return calls;
}

at::Tensor narrow_rows(const at::Tensor& t, Interval rows) {
  return t.narrow(2, rows.begin, rows.size());
}

at::Tensor part_of(const at::Tensor& t, Interval rows, int64_t batch_row) {
  return narrow_rows(batch_row < 0 ? t : t.narrow(0, batch_row, 1), rows);
}

at::Tensor select_intervals(const at::Tensor& t, int64_t dim, std::span<const Interval> parts) {
  std::vector<at::Tensor> list;
  for (const Interval& part : parts) list.push_back(t.narrow(dim, part.begin, part.size()));
  return list.size() == 1 ? list[0] : at::cat(list, dim);
}

at::Tensor position_tensor(std::span<const Interval> intervals, c10::Device device) {
  std::vector<at::Tensor> parts;
  const auto options = at::TensorOptions(device).dtype(at::kLong);
  for (const Interval& part : intervals) parts.push_back(at::arange(part.begin, part.end, options));
  return parts.size() == 1 ? parts[0] : at::cat(parts);
}

at::Tensor as_scores(const at::Tensor& mask, at::ScalarType dtype) {
  if (mask.scalar_type() != at::kBool) return mask.to(dtype);
  return at::zeros(mask.sizes(), mask.options().dtype(dtype))
      .masked_fill_(mask.logical_not(), kNoKey);
}

at::Tensor with_four_dims(at::Tensor mask) {
  while (mask.dim() < 4) mask = mask.unsqueeze(0);
  return mask;
}

/// The rows and columns of the given mask that belong to the tile.
at::Tensor given_part(const BlockProblem& problem, const RowSet& keys, const Tile& tile) {
  at::Tensor mask = problem.mask;
  if (tile.batch_row >= 0 && mask.size(0) > 1) mask = mask.narrow(0, tile.batch_row, 1);
  if (mask.size(2) > 1) {
    mask = select_intervals(mask, 2, part_of_rows(problem.queries.mask_rows, tile.queries));
  }
  if (mask.size(3) > 1) {
    mask = select_intervals(mask, 3, part_of_rows(keys.mask_rows, tile.keys));
  }
  return mask;
}

/// What the mask function gives for the tile.
at::Tensor computed_part(const BlockProblem& problem, const RowSet& keys, const Tile& tile,
                         const at::Tensor& query) {
  const auto positions = [&](const RowSet& rows, Interval part) {
    return position_tensor(part_of_rows(rows.positions, part), query.device());
  };
  const at::Tensor given =
      problem.mask_function(positions(problem.queries, tile.queries).unsqueeze(1),
                            positions(keys, tile.keys).unsqueeze(0));
  at::Tensor mask = with_four_dims(given);
  if (tile.batch_row >= 0 && mask.size(0) > tile.batch_row) {
    mask = mask.narrow(0, mask.size(0) > 1 ? tile.batch_row : 0, 1);
  }
  const std::array<int64_t, 4> wanted = {query.size(0), query.size(1), tile.queries.size(),
                                         tile.keys.size()};
  for (size_t dim = 0; dim < wanted.size(); ++dim) {
    const int64_t size = mask.dim() == 4 ? mask.size(static_cast<int64_t>(dim)) : -1;
    if (size == 1 || size == wanted[dim]) continue;
    throw InvalidArgument(join_text("mask_function of positions ", wanted[2], "x1 and 1x",
                                    wanted[3], " gave ", shape_text(given.sizes()),
                                    ", which does not broadcast to ", shape_text(wanted),
                                    " (batch, heads, queries, keys of this rank)"));
  }
  return mask;
}

at::Tensor mask_of(const BlockProblem& problem, const RowSet& keys, const Call& call,
                   const at::Tensor& query) {
  const Tile& tile = call.tile;
  const auto dtype = query.scalar_type();
  at::Tensor mask;
  if (problem.mask.defined()) mask = as_scores(given_part(problem, keys, tile), dtype);
  if (problem.mask_function) {
    const at::Tensor computed = as_scores(computed_part(problem, keys, tile, query), dtype);
    mask = mask.defined() ? mask.add(computed) : computed;
  }
  if (call.mask_offset >= 0) {
    const at::Tensor seen =
        at::ones({tile.queries.size(), tile.keys.size()}, query.options().dtype(at::kBool))
            .tril(call.mask_offset);
    mask = mask.masked_fill(seen.logical_not(), kNoKey);
  }
  return mask.expand({mask.size(0), mask.size(1), tile.queries.size(), tile.keys.size()});
}

KernelInputs inputs_of(const BlockProblem& problem, const RowSet& keys, const Call& call,
                       const at::Tensor& query, const at::Tensor& key, const at::Tensor& value) {
  const Tile& tile = call.tile;
  KernelInputs inputs{part_of(query, tile.queries, tile.batch_row),
                      part_of(key, tile.keys, tile.batch_row),
                      part_of(value, tile.keys, tile.batch_row), problem.scale, call.causal};
  if (is_masked(problem)) inputs.mask = mask_of(problem, keys, call, inputs.query);
  return inputs;
}

at::Tensor finite_or_zero(const at::Tensor& lse) { return lse.masked_fill(lse.eq(kNoKey), 0); }

void merge(const at::Tensor& out, const at::Tensor& lse, const KernelOutputs& with) {
  const at::Tensor other = with.log_sum_exp.to(lse.scalar_type());
  const at::Tensor sum = at::logaddexp(lse, other);
  const at::Tensor base = finite_or_zero(sum);
  out.mul_(lse.sub(base).exp_().unsqueeze(-1));
  out.add_(with.out.to(out.scalar_type()).mul(other.sub(base).exp_().unsqueeze(-1)));
  lse.copy_(sum);
}

}  // namespace

at::ScalarType accumulation_dtype(at::ScalarType dtype) {
  return dtype == at::kDouble ? at::kDouble : at::kFloat;
}

BlockAttention::BlockAttention(const BlockProblem& problem, const at::Tensor& query,
                               int64_t value_width)
    : problem_(problem), query_(query) {
  const auto options = query.options().dtype(accumulation_dtype(query.scalar_type()));
  const int64_t rows = query.size(2);
  out_ = at::zeros({query.size(0), query.size(1), rows, value_width}, options);
  lse_ = at::full({query.size(0), query.size(1), rows}, kNoKey, options);
}

void BlockAttention::add(const RowSet& keys, const at::Tensor& key, const at::Tensor& value) {
  if (query_.numel() == 0 || key.numel() == 0) return;
  const AttentionKernel kernel = choose_kernel(problem_.kernel, query_, is_masked(problem_));
  for (const Call& call : calls_of(problem_, keys)) {
    const auto result = attend(kernel, inputs_of(problem_, keys, call, query_, key, value));
    merge(part_of(out_, call.tile.queries, call.tile.batch_row),
          part_of(lse_, call.tile.queries, call.tile.batch_row), result);
  }
}

at::Tensor BlockAttention::out() const { return out_.to(query_.scalar_type()); }
at::Tensor BlockAttention::log_sum_exp() const { return finite_or_zero(lse_); }

BlockGradients::BlockGradients(const BlockProblem& problem, const at::Tensor& query,
                               const at::Tensor& grad_out, const at::Tensor& out,
                               const at::Tensor& log_sum_exp)
    : problem_(problem),
      query_(query),
      grad_out_(grad_out.contiguous()),
      out_(out),
      lse_(log_sum_exp),
      d_query_(at::zeros(query.sizes(),
                         query.options().dtype(accumulation_dtype(query.scalar_type())))) {}

void BlockGradients::add(const RowSet& keys, const at::Tensor& key, const at::Tensor& value,
                         const at::Tensor& d_key, const at::Tensor& d_value) {
  if (query_.numel() == 0 || key.numel() == 0) return;
  const AttentionKernel kernel = choose_kernel(problem_.kernel, query_, is_masked(problem_));
  for (const Call& call : calls_of(problem_, keys)) {
    const Tile& tile = call.tile;
    const auto grads = attend_backward(kernel, inputs_of(problem_, keys, call, query_, key, value),
                                       part_of(grad_out_, tile.queries, tile.batch_row),
                                       part_of(out_, tile.queries, tile.batch_row),
                                       part_of(lse_, tile.queries, tile.batch_row));
    part_of(d_query_, tile.queries, tile.batch_row).add_(grads.query);
    part_of(d_key, tile.keys, tile.batch_row).add_(grads.key);
    part_of(d_value, tile.keys, tile.batch_row).add_(grads.value);
  }
}

at::Tensor BlockGradients::query() const { return d_query_.to(query_.scalar_type()); }

}  // namespace tessera::parallel
