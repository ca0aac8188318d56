#include <ATen/TensorOperators.h>
#include <ATen/core/List.h>
#include <ATen/ops/stack.h>

#include <map>

#include "tessera/dtensor/dispatch/dispatch.h"
#include "tessera/dtensor/dispatch/register.h"
#include "tessera/dtensor/layout.h"
#include "tessera/dtensor/norm_of_parts.h"
#include "tessera/dtensor/ops/install.h"
#include "tessera/exec/redistribute.h"
#include "tessera/observe/call_site.h"

/// _foreach_norm, which clip_grad_norm_ calls for all gradients at once. Each tensor's power sum is
/// local; the sums of tensors sharded by the same axes are combined in one all_reduce.
namespace tessera::dtensor {
namespace {

/// Tensors that are sharded by the same axes of one mesh.
struct Together {
  std::vector<size_t> which;
  std::vector<at::Tensor> powers;
};

at::Tensor reduce_over(const OpEntry& entry, const at::Tensor& values, const DeviceMesh& mesh,
                       const std::vector<int>& axes, const NormOfParts& norm) {
  const Sharding to = as_replicated(values, mesh);
  Sharding from = to;
  for (int axis : axes) from = from.with(axis, Partial(norm.reduction()));
  if (from != to) check_reduction(entry, from);
  const comm::CallSite site({.op = entry.name, .implicit = true});
  return norm.root(exec::redistribute(values, from, to, {.may_alias = true}));
}

bool foreach_norm(const OpEntry& entry, const c10::OperatorHandle& op, Stack& stack) {
  infer_results(entry, op, stack);
  const auto args = torch::jit::last(stack, entry.args.size());
  const auto tensors = args[0].toTensorVector();
  const NormOfParts norm{args[1].toScalar().toDouble()};
  for (const at::Tensor& tensor : tensors) {
    if (sharded_meta(tensor) == nullptr) return false;  // the common path reports the error
    if (!sharded_meta(tensor)->sharding().mesh().contains_me()) return false;
  }
  std::vector<at::ScalarType> results;
  // Ordered by first appearance of mesh and axes, so that every rank sends in the same order.
  std::vector<std::pair<DeviceMesh, std::vector<int>>> keys;
  std::vector<std::map<at::ScalarType, Together>> groups;
  for (size_t i = 0; i < tensors.size(); ++i) {
    const ShardedMeta& meta = *sharded_meta(tensors[i]);
    const Sharding sharding = without_partial(meta.sharding());
    const comm::CallSite site({.op = entry.name, .implicit = true});
    const at::Tensor local =
        exec::redistribute(meta.local(), meta.sharding(), sharding, {.may_alias = true});
    const auto given = args[2].isNone() ? local.scalar_type() : args[2].toScalarType();
    results.push_back(at::isComplexType(given) ? at::toRealValueType(given) : given);
    std::vector<int> axes;
    for (int axis = 0; axis < sharding.mesh().ndim(); ++axis) {
      if (sharding.placement(axis).is_sharded()) axes.push_back(axis);
    }
    const std::pair key(sharding.mesh(), axes);
    size_t at = 0;
    while (at < keys.size() && keys[at] != key) ++at;
    if (at == keys.size()) {
      keys.push_back(key);
      groups.emplace_back();
    }
    const at::Tensor power = norm.of_part(local, results.back(), {});
    Together& together = groups[at][power.scalar_type()];
    together.which.push_back(i);
    together.powers.push_back(power);
  }
  std::vector<at::Tensor> norms(tensors.size());
  for (size_t at = 0; at < keys.size(); ++at) {
    for (const auto& [type, together] : groups[at]) {
      const at::Tensor all =
          reduce_over(entry, at::stack(together.powers), keys[at].first, keys[at].second, norm);
      for (size_t k = 0; k < together.which.size(); ++k) {
        const size_t i = together.which[k];
        const at::Tensor one = all.select(0, static_cast<int64_t>(k)).to(results[i]);
        norms[i] = wrap(one, as_replicated(one, keys[at].first));
      }
    }
  }
  torch::jit::drop(stack, entry.args.size());
  torch::jit::push(stack, c10::List<at::Tensor>(norms));
  return true;
}

}  // namespace

void install_foreach_norm() { set_decomposition("aten::_foreach_norm.Scalar", foreach_norm); }

}  // namespace tessera::dtensor
