#include "tessera/module/clip_grad.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/_foreach_mul.h>
#include <ATen/ops/maximum.h>
#include <ATen/ops/zeros.h>
#include <c10/core/GradMode.h>

#include <cmath>
#include <map>
#include <vector>

#include "tessera/base/errors.h"
#include "tessera/dtensor/by_mesh.h"
#include "tessera/dtensor/dtensor.h"
#include "tessera/dtensor/parts/norm_of_parts.h"
#include "tessera/dtensor/tensor/sharded_tensor.h"
#include "tessera/observe/call_site.h"

namespace tessera {
namespace {

/// Accumulates what NormOfParts takes of each tensor: sums of |x|^p, or the maximum if p is inf.
class PowerSum {
 public:
  explicit PowerSum(double p) : norm_{p} {}

  void add(const at::Tensor& power) {
    if (!sum_.defined()) {
      sum_ = power;
      return;
    }
    const at::Tensor here = power.to(sum_.device());
    sum_ = norm_.reduction() == ReduceOp::max ? at::maximum(sum_, here) : sum_ + here;
  }
  /// For a plain tensor.
  at::Tensor of(const at::Tensor& x) const {
    return norm_.of_part(x, c10::toRealValueType(x.scalar_type()), {});
  }
  const at::Tensor& value() const { return sum_; }
  at::Tensor norm() const { return norm_.root(sum_); }
  ReduceOp reduction() const { return norm_.reduction(); }

 private:
  dtensor::NormOfParts norm_;
  at::Tensor sum_;
};

bool any_sharded(const std::vector<at::Tensor>& tensors, int axis) {
  for (const at::Tensor& tensor : tensors) {
    if (sharding(tensor).placement(axis).is_sharded()) return true;
  }
  return false;
}

/// The power sum over all ranks of a mesh, with one reduction over the axes that shard any of them.
/// A part that several of these ranks hold counts once: each adds its fraction of it.
at::Tensor power_over_mesh(const dtensor::TensorsOfMesh& group, double p) {
  std::vector<int> axes;
  for (int axis = 0; axis < group.mesh.ndim(); ++axis) {
    if (group.mesh.size(axis) > 1 && any_sharded(group.tensors, axis)) axes.push_back(axis);
  }
  PowerSum sum(p);
  for (const at::Tensor& gradient : group.tensors) {
    at::Tensor power = sum.of(to_local(gradient));
    int holders = 1;
    for (const int axis : axes) {
      if (!sharding(gradient).placement(axis).is_sharded()) holders *= group.mesh.size(axis);
    }
    sum.add(holders == 1 || sum.reduction() == ReduceOp::max ? power : power / holders);
  }
  if (axes.empty()) return sum.value();
  const at::Tensor mine = sum.value();
  const Sharding whole(group.mesh, std::vector<Placement>(static_cast<size_t>(group.mesh.ndim())),
                       {}, {.dtype = static_cast<DType>(mine.scalar_type())});
  Sharding addend = whole;
  for (const int axis : axes) {
    addend = addend.with(axis, Partial(sum.reduction()));
  }
  const comm::CallSite site({.op = "clip_grad_norm_"});
  return to_local(redistribute(dtensor::wrap(mine, addend), whole));
}

/// The gradient with its parameter's placements: a Partial one is reduced, once for all uses.
at::Tensor reduced_gradient(const at::Tensor& parameter) {
  at::Tensor gradient = parameter.grad();
  if (is_dtensor(gradient) && sharding(gradient).has_partial() && is_dtensor(parameter)) {
    const comm::CallSite site({.op = "clip_grad_norm_"});
    gradient = redistribute(gradient, sharding(parameter).with_dtype(sharding(gradient).dtype()));
    parameter.mutable_grad() = gradient;
  }
  return gradient;
}

std::vector<at::Tensor> gradients_of(std::span<const at::Tensor> parameters) {
  std::vector<at::Tensor> out;
  for (const at::Tensor& parameter : parameters) {
    if (parameter.defined() && parameter.grad().defined()) {
      out.push_back(reduced_gradient(parameter));
    }
  }
  return out;
}

at::Tensor norm_of(const std::vector<at::Tensor>& gradients, double p) {
  require(p > 0, "clip_grad_norm_: norm_type is ", p, ", which is not above 0");
  PowerSum all(p);
  for (const at::Tensor& gradient : gradients) {
    if (!is_dtensor(gradient)) all.add(all.of(gradient));
  }
  for (const auto& group : dtensor::group_by_mesh(gradients)) {
    if (group.mesh.defined()) all.add(power_over_mesh(group, p));
  }
  return all.value().defined() ? all.norm() : at::zeros({});
}

/// The local tensors by device and dtype: lists for one foreach call each.
std::map<std::pair<c10::DeviceType, at::ScalarType>, std::vector<at::Tensor>> local_lists(
    const std::vector<at::Tensor>& gradients) {
  std::map<std::pair<c10::DeviceType, at::ScalarType>, std::vector<at::Tensor>> out;
  for (const at::Tensor& gradient : gradients) {
    const at::Tensor local = is_dtensor(gradient) ? to_local(gradient) : gradient;
    out[{local.device().type(), local.scalar_type()}].push_back(local);
  }
  return out;
}

}  // namespace

at::Tensor clip_grad_norm_(std::span<const at::Tensor> parameters, double max_norm,
                           const ClipOptions& options) {
  const c10::AutoGradMode no_grad(false);
  const std::vector<at::Tensor> gradients = gradients_of(parameters);
  const at::Tensor norm = norm_of(gradients, options.norm_type);
  require(!options.error_if_nonfinite || std::isfinite(norm.item<double>()),
          "clip_grad_norm_: the norm of order ", options.norm_type, " is not finite");
  // As in PyTorch: the small constant avoids division by zero.
  const at::Tensor factor = (max_norm / (norm + 1e-6)).clamp_max(1.0);
  for (auto& [where, list] : local_lists(gradients)) {
    at::_foreach_mul_(list, factor.to(list[0].device()));
  }
  return norm;
}

}  // namespace tessera
