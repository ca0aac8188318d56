#include <ATen/ops/_amp_foreach_non_finite_check_and_unscale.h>

#include <algorithm>

#include "tessera/base/errors.h"
#include "tessera/base/iota_vector.h"
#include "tessera/dtensor/by_mesh.h"
#include "tessera/dtensor/dispatch/decide/row_kernel.h"
#include "tessera/dtensor/dispatch/dispatch.h"
#include "tessera/dtensor/kernels/register.h"
#include "tessera/dtensor/ops/install.h"
#include "tessera/dtensor/ops/reductions.h"
#include "tessera/exec/redistribute.h"
#include "tessera/observe/call_site.h"

/// Gradient scaling: _amp_foreach_non_finite_check_and_unscale_(grads, found_inf, inv_scale). Each
/// rank unscales its parts; a non-finite value on one rank sets found_inf on all.
namespace tessera::dtensor {
namespace {

/// The axes over which some gradient is sharded: ranks along others find the same.
std::vector<int> axes_of_all(std::span<const Sharding> gradients) {
  std::vector<int> out;
  for (const Sharding& gradient : gradients) {
    for (const int axis : sharded_axes(gradient)) {
      if (std::ranges::find(out, axis) == out.end()) out.push_back(axis);
    }
  }
  std::ranges::sort(out);
  return out;
}

void unscale(const KernelCall& call) {
  const auto grads = call.args()[0].toTensorVector();
  at::Tensor found = call.args()[1].toTensor();
  at::_amp_foreach_non_finite_check_and_unscale_(grads, found, call.args()[2].toTensor());
  const std::vector<int> axes = axes_of_all(call.operands.first(grads.size()));
  if (!axes.empty()) {
    found.copy_(reduce_over_axes(found.clone(), call.operands[0].mesh(), axes, ReduceOp::max));
  }
  call.give();
}

/// The tensor itself, or the local tensor of a replicated one.
at::Tensor same_everywhere(const OpEntry& entry, const at::Tensor& tensor, const char* name) {
  const ShardedMeta* meta = sharded_meta(tensor);
  if (meta == nullptr) return tensor;
  require(meta->sharding().is_replicated(), entry.name, ": ", name, " is ", meta->sharding(),
          "; it must be replicated: redistribute it, or use a plain tensor of one element");
  return meta->local();
}

/// found_inf over all ranks of a mesh.
void find_on_all(const DeviceMesh& mesh, const at::Tensor& found) {
  if (!mesh.defined() || mesh.size() == 1 || !mesh.contains_me()) return;
  const auto axes = iota_vector<int>(mesh.ndim());
  found.copy_(reduce_over_axes(found.clone(), mesh, axes, ReduceOp::max));
}

/// The values of a Partial gradient: its addends may be finite where the sum is not.
at::Tensor reduced(const OpEntry& entry, const at::Tensor& gradient) {
  const Sharding& from = sharded_meta(gradient)->sharding();
  std::vector<Placement> placements(from.placements().begin(), from.placements().end());
  for (Placement& p : placements) p = p.is_partial() ? Replicate() : p;
  const Sharding to = from.with_placements(std::move(placements), from.order());
  const comm::CallSite site({.op = entry.name, .implicit = true});
  return wrap(exec::redistribute(sharded_meta(gradient)->local(), from, to), to);
}

/// Gradients of several meshes, some of them plain or Partial: the op itself for each mesh, as its
/// rows say, then found_inf of all. Partial gradients are reduced, unscaled and written back.
/// Declines where the row does all.
bool unscale_by_mesh(const OpEntry& entry, const c10::OperatorHandle&, Stack& stack) {
  const auto args = torch::jit::last(stack, entry.args.size());
  const std::vector<at::Tensor> grads = args[0].toTensorVector();
  const auto has_partial = [](const at::Tensor& grad) {
    const ShardedMeta* meta = sharded_meta(grad);
    return meta != nullptr && meta->sharding().has_partial();
  };
  const bool some_partial = std::ranges::any_of(grads, has_partial);
  if (!some_partial && group_by_mesh(grads).size() < 2) return false;
  at::Tensor found = same_everywhere(entry, args[1].toTensor(), "found_inf");
  const at::Tensor scale = same_everywhere(entry, args[2].toTensor(), "inv_scale");
  for (const at::Tensor& grad : grads) {  // before anything is written
    const ShardedMeta* meta = sharded_meta(grad);
    if (meta != nullptr) check_reduction(entry, meta->sharding());
  }
  std::vector<at::Tensor> values = grads;
  for (at::Tensor& value : values) {
    if (has_partial(value)) value = reduced(entry, value);
  }
  const std::vector<TensorsOfMesh> groups = group_by_mesh(values);
  for (const TensorsOfMesh& group : groups) {
    at::_amp_foreach_non_finite_check_and_unscale_(group.tensors, found, scale);
  }
  for (size_t i = 0; i < grads.size(); ++i) {
    if (has_partial(grads[i])) grads[i].copy_(values[i]);
  }
  const comm::CallSite site({.op = entry.name, .implicit = true});
  // Meshes may overlap in some ranks only: each round propagates a flag by one mesh.
  for (size_t round = 0; groups.size() > 1 && round < groups.size(); ++round) {
    for (const TensorsOfMesh& group : groups) find_on_all(group.mesh, found);
  }
  torch::jit::drop(stack, entry.args.size());
  return true;
}

}  // namespace

void install_amp() {
  add_row_kernel("unscale", unscale);
  set_special_case("aten::_amp_foreach_non_finite_check_and_unscale_", unscale_by_mesh);
}

}  // namespace tessera::dtensor
