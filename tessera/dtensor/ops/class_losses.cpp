#include <ATen/TensorOperators.h>
#include <ATen/ops/amax.h>
#include <ATen/ops/full.h>
#include <ATen/ops/where.h>
#include <c10/core/WrapDimMinimal.h>

#include <algorithm>
#include <limits>

#include "tessera/dtensor/dispatch/decide/row_kernel.h"
#include "tessera/dtensor/ops/class_sums.h"
#include "tessera/dtensor/ops/install.h"
#include "tessera/dtensor/ops/reductions.h"
#include "tessera/dtensor/ops/sharded_dim_rows.h"
#include "tessera/dtensor/tensor/sharded_tensor.h"

/// log_softmax, its gradient and logsumexp along a sharded dim, over any number of axes: each rank
/// computes with its classes, and one number a row is reduced at a time. The scores are neither
/// gathered nor moved. nll_loss.cpp computes the loss from them.
namespace tessera::dtensor {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

/// float16 and bfloat16 are accumulated in float32.
at::ScalarType wide(at::ScalarType dtype) {
  return at::isReducedFloatingType(dtype) ? at::kFloat : dtype;
}

std::vector<int> axes_over(const Sharding& sharding, at::IntArrayRef dims) {
  std::vector<int> out;
  for (const int axis : sharded_axes(sharding)) {
    if (std::ranges::find(dims, sharding.placement(axis).dim()) != dims.end()) out.push_back(axis);
  }
  return out;
}

/// The shift and the sum of exponentials of each row, over all ranks. Reduced dims have size 1.
struct RowSums {
  at::Tensor shift;
  at::Tensor sum;  ///< of exp(x - shift)
};

/// The shift is the largest value of the row. Where that is -inf, or infinite if
/// `infinity_is_zero`, it is 0: inf - inf is NaN.
RowSums row_sums(const at::Tensor& local, const Sharding& as, at::IntArrayRef dims,
                 bool infinity_is_zero) {
  const std::vector<int> axes = axes_over(as, dims);
  std::vector<int64_t> rows = local.sizes().vec();
  bool empty = false;
  for (const int64_t dim : dims) {
    empty = empty || local.size(dim) == 0;
    rows[static_cast<size_t>(dim)] = 1;
  }
  const at::Tensor own =
      empty ? at::full(rows, -kInfinity, local.options()) : at::amax(local, dims, /*keepdim=*/true);
  const at::Tensor largest = reduce_over_axes(own, as.mesh(), axes, ReduceOp::max);
  const at::Tensor is_shifted = infinity_is_zero ? largest.isfinite() : largest.ne(-kInfinity);
  const at::Tensor shift = at::where(is_shifted, largest, 0.0).to(local.scalar_type());
  const at::Tensor sum = (local - shift).exp().sum(dims, /*keepdim=*/true);
  return {shift, reduce_over_axes(sum, as.mesh(), axes, ReduceOp::sum)};
}

/// _log_softmax(self, dim, half_to_float)
void log_softmax(const KernelCall& call) {
  const Sharding& as = call.operands[0];
  const auto made = static_cast<at::ScalarType>(call.results[0].dtype());
  const at::Tensor given = call.tensor("self");
  const at::Tensor local = given.to(wide(given.scalar_type()));
  const int64_t dim = c10::maybe_wrap_dim(call.arg("dim").toInt(), local.dim());
  const RowSums rows = row_sums(local, as, {dim}, /*infinity_is_zero=*/false);
  call.give(strided_as((local - rows.shift - rows.sum.log()).to(made), call.results[0]));
}

/// _log_softmax_backward_data(grad_output, output, dim, input_dtype): grad - softmax * sum(grad),
/// the sum over the classes of all ranks, which after nll_loss is known.
void log_softmax_backward(const KernelCall& call) {
  const Sharding& as = call.operands[1];
  const at::Tensor given = call.tensor("grad_output");
  const at::Tensor grad = given.to(wide(given.scalar_type()));
  const int64_t dim = c10::maybe_wrap_dim(call.arg("dim").toInt(), grad.dim());
  at::Tensor sum = take_class_sums(given, call.operands[0], dim);
  if (!sum.defined()) {
    sum = reduce_over_axes(grad.sum({dim}, /*keepdim=*/true), as.mesh(), axes_over(as, {dim}),
                           ReduceOp::sum);
  }
  const auto made = static_cast<at::ScalarType>(call.results[0].dtype());
  const at::Tensor out = grad - call.tensor("output").to(grad.scalar_type()).exp() * sum;
  call.give(strided_as(out.to(made), call.results[0]));
}

std::vector<int64_t> reduced_dims(std::vector<int64_t> dims, int64_t ndim) {
  for (int64_t& dim : dims) dim += dim < 0 ? ndim : 0;
  if (dims.empty()) {
    for (int64_t dim = 0; dim < ndim; ++dim) dims.push_back(dim);
  }
  std::ranges::sort(dims);
  return dims;
}

/// logsumexp(self, dim, keepdim)
void logsumexp(const KernelCall& call) {
  const auto made = static_cast<at::ScalarType>(call.results[0].dtype());
  const at::Tensor local = call.tensor("self").to(wide(made));
  const auto dims = reduced_dims(call.arg("dim").toIntVector(), local.dim());
  const RowSums rows = row_sums(local, call.operands[0], dims, /*infinity_is_zero=*/true);
  at::Tensor out = rows.shift + rows.sum.log();
  if (!call.arg("keepdim").toBool()) out = out.squeeze(dims);
  call.give(out.to(made));
}

bool is_real(DType dtype) { return !at::isComplexType(static_cast<at::ScalarType>(dtype)); }

/// Rows that shard a dim of the last operand, the scores; `reductions` of a number a row each.
std::vector<rules::Row> rows_along(const rules::OpCall& call, int axis, int dim,
                                   int64_t reductions) {
  const auto operands = call.operands();
  const Sharding& scores = operands.back();
  const int64_t ranks = scores.mesh().size(axis);
  std::vector<rules::Row> out = rows_sharding(scores, axis, dim);
  for (rules::Row& row : out) {
    row.operands.assign(operands.size(), row.operands[0]);
    if (row.as_is >= 0) row.as_is = static_cast<int>(operands.size()) - 1;
    row.comm = rules::KernelComm::combine;
    row.sent = reductions * 2 * elements_beside(scores, axis, dim) * dtype_bytes(scores.dtype()) *
               (ranks - 1) / ranks;
  }
  return out;
}

/// log_softmax reduces two numbers a row, its gradient one.
std::vector<rules::Row> log_softmax_rows(const rules::OpCall& call, int axis) {
  const auto operands = call.operands();
  const Sharding& scores = operands.back();
  const int dim = scores.ndim() == 0 ? -1 : named_dim(call, scores);
  if (dim < 0 || scores.numel() == 0) return {};
  auto out = rows_along(call, axis, dim, operands.size() == 1 ? 2 : 1);
  for (rules::Row& row : out) row.results = {row.operands.front()};
  return out;
}

std::vector<rules::Row> logsumexp_rows(const rules::OpCall& call, int axis) {
  const Sharding self = call.operands()[0];
  if (self.ndim() == 0 || self.numel() == 0 || !is_real(self.dtype())) return {};
  std::vector<rules::Row> out;
  for (const int64_t dim : reduced_dims(call.ints("dim"), self.ndim())) {
    if (dim < 0 || dim >= self.ndim()) return {};  // libtorch reports the error
    for (rules::Row& row : rows_along(call, axis, static_cast<int>(dim), 2)) {
      row.results = {Replicate()};
      out.push_back(std::move(row));
    }
  }
  return out;
}

}  // namespace

void install_class_losses() {
  using rules::KernelComm;
  add_row_kernel("log_softmax", log_softmax, KernelComm::combine, log_softmax_rows);
  add_row_kernel("log_softmax_backward", log_softmax_backward, KernelComm::combine,
                 log_softmax_rows);
  add_row_kernel("logsumexp", logsumexp, KernelComm::combine, logsumexp_rows);
}

}  // namespace tessera::dtensor
