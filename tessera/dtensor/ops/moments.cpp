#include <ATen/TensorOperators.h>
#include <ATen/ops/mean.h>
#include <ATen/ops/sum.h>
#include <ATen/ops/var.h>

#include <algorithm>
#include <cmath>

#include "tessera/dtensor/ops/rule_handlers.h"

/// Variance over a sharded dim. Each rank has the mean and the squared deviations of its part;
/// these are combined by the parallel variance formula: the deviations of all parts, plus the
/// deviation of each part's mean from the common mean. No sum of squares is computed, so there is
/// no cancellation.
namespace tessera::dtensor {
namespace {

using torch::jit::Stack;

struct Parts {
  std::vector<int64_t> dims;
  bool keepdim = false;
  double here = 1;  // elements of this part per result
  double all = 1;
};

Parts parts_of(const c10::IValue& dim, bool keepdim, const at::Tensor& local,
               const Sharding& operand) {
  Parts out;
  out.keepdim = keepdim;
  if (dim.isIntList()) out.dims = dim.toIntVector();
  if (out.dims.empty()) {
    for (int64_t d = 0; d < local.dim(); ++d) out.dims.push_back(d);
  }
  for (int64_t& d : out.dims) {
    d += d < 0 ? local.dim() : 0;
    out.here *= static_cast<double>(local.size(d));
    out.all *= static_cast<double>(operand.shape()[static_cast<size_t>(d)]);
  }
  return out;
}

}  // namespace

/// var and std (self, dim, correction, keepdim), and with the mean var_mean and std_mean.
void moments(const OpEntry& entry, const c10::OperatorHandle& op, const Decision& decision,
             Stack& stack) {
  at::Tensor self = torch::jit::peek(stack, 0, entry.args.size()).toTensor();
  const c10::IValue correction = argument_named(op, stack, "correction");
  const Parts parts =
      parts_of(argument_named(op, stack, "dim"), argument_named(op, stack, "keepdim").toBool(),
               self, decision.operands[0]);
  const at::ScalarType dtype = self.scalar_type();
  const bool narrow = dtype == at::kHalf || dtype == at::kBFloat16;
  if (narrow) self = self.to(at::kFloat);

  // The mean of an empty part is NaN, its sum is not.
  const bool empty = parts.here == 0;
  const at::Tensor mean =
      empty ? at::sum(self, parts.dims, parts.keepdim) : at::mean(self, parts.dims, parts.keepdim);
  at::Tensor deviations =
      empty ? at::sum(self.abs(), parts.dims, parts.keepdim)
            : at::var(self, parts.dims, at::Scalar(0), parts.keepdim) * parts.here;
  const at::Tensor common =
      reduce_cut_axes(entry, decision, mean * (parts.here / parts.all), ReduceOp::sum);
  const at::Tensor away = (mean - common).abs();
  deviations =
      reduce_cut_axes(entry, decision, deviations + away * away * parts.here, ReduceOp::sum);

  const double taken = correction.isNone() ? 1 : correction.toScalar().toDouble();
  at::Tensor spread = deviations / std::max(0.0, parts.all - taken);
  const bool root = entry.name.starts_with("aten::std");
  if (root) spread = spread.sqrt();
  const at::ScalarType real = at::isComplexType(dtype) ? at::toRealValueType(dtype) : dtype;
  torch::jit::drop(stack, entry.args.size());
  torch::jit::push(stack, spread.to(real));
  if (entry.result_alias.size() == 2) torch::jit::push(stack, common.to(dtype));
}

}  // namespace tessera::dtensor
