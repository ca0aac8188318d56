#include <ATen/TensorOperators.h>
#include <ATen/ops/mean.h>
#include <ATen/ops/sum.h>
#include <ATen/ops/var.h>

#include <algorithm>
#include <cmath>

#include "tessera/base/iota_vector.h"
#include "tessera/dtensor/ops/install.h"
#include "tessera/dtensor/ops/reductions.h"

/// Variance over a sharded dim. Each rank has the mean and the squared deviations of its part;
/// these are combined by the parallel variance formula: the deviations of all parts, plus the
/// deviation of each part's mean from the common mean. No sum of squares is computed, so there is
/// no cancellation.
namespace tessera::dtensor {
namespace {

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
  if (out.dims.empty()) out.dims = iota_vector<int64_t>(local.dim());
  for (int64_t& d : out.dims) {
    d += d < 0 ? local.dim() : 0;
    out.here *= static_cast<double>(local.size(d));
    out.all *= static_cast<double>(operand.shape()[static_cast<size_t>(d)]);
  }
  return out;
}

/// var and std (self, dim, correction, keepdim), and with the mean var_mean and std_mean.
void moments(const KernelCall& call) {
  at::Tensor self = call.args()[0].toTensor();
  const c10::IValue correction = call.arg("correction");
  const Parts parts =
      parts_of(call.arg("dim"), call.arg("keepdim").toBool(), self, call.operands[0]);
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
      reduce_over_sharded(call, mean * (parts.here / parts.all), ReduceOp::sum);
  const at::Tensor away = (mean - common).abs();
  deviations = reduce_over_sharded(call, deviations + away * away * parts.here, ReduceOp::sum);

  const double taken = correction.isNone() ? 1 : correction.toScalar().toDouble();
  at::Tensor spread = deviations / std::max(0.0, parts.all - taken);
  const bool root = call.name.starts_with("aten::std");
  if (root) spread = spread.sqrt();
  const at::ScalarType real = at::isComplexType(dtype) ? at::toRealValueType(dtype) : dtype;
  if (call.op.schema().returns().size() == 2) return call.give(spread.to(real), common.to(dtype));
  call.give(spread.to(real));
}

}  // namespace

void install_moments() { add_row_kernel("moments", moments); }

}  // namespace tessera::dtensor
