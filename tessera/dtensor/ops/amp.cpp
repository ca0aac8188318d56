// Gradient scaling: an overflow of a gradient on one rank is reported to all ranks.
#include <ATen/ops/_amp_foreach_non_finite_check_and_unscale.h>

#include <torch/csrc/distributed/c10d/Backend.hpp>

#include "tessera/base/errors.h"
#include "tessera/comm/world.h"
#include "tessera/dtensor/dispatch/dispatch.h"
#include "tessera/dtensor/dispatch/register.h"
#include "tessera/dtensor/ops/install.h"
#include "tessera/observe/call_site.h"

namespace tessera::dtensor {
namespace {

/// The tensor itself, or the local tensor of a replicated one: scales and flags must be equal on
/// every rank.
at::Tensor same_everywhere(const OpEntry& entry, const at::Tensor& tensor, const char* name) {
  const ShardedMeta* meta = sharded_meta(tensor);
  if (meta == nullptr) return tensor;
  require(meta->sharding().is_replicated(), entry.name, ": ", name, " is ", meta->sharding(),
          "; it must be replicated: redistribute it, or use a plain tensor of one element");
  return meta->local();
}

/// The maximum of the flag over the ranks of a mesh, in place.
void reduce_max(const DeviceMesh& mesh, const at::Tensor& flag) {
  if (mesh.size() == 1 || !mesh.contains_me()) return;
  std::vector<at::Tensor> flags = {flag};
  c10d::AllreduceOptions options;
  options.reduceOp = c10d::ReduceOp::MAX;
  comm::group_of(mesh)->backend(flag.device().type()).allreduce(flags, options)->wait();
}

/// _amp_foreach_non_finite_check_and_unscale_(grads, found_inf, inv_scale): each rank unscales its
/// parts; a non-finite value on one rank sets found_inf on all.
bool unscale(const OpEntry& entry, const c10::OperatorHandle&, Stack& stack) {
  const at::Tensor scale = same_everywhere(entry, torch::jit::pop(stack).toTensor(), "inv_scale");
  at::Tensor found = same_everywhere(entry, torch::jit::pop(stack).toTensor(), "found_inf");
  const auto grads = torch::jit::pop(stack).toTensorVector();
  std::vector<at::Tensor> locals;
  std::vector<DeviceMesh> meshes;
  for (size_t i = 0; i < grads.size(); ++i) {
    const ShardedMeta* meta = sharded_meta(grads[i]);
    locals.push_back(meta != nullptr ? meta->local() : grads[i]);
    if (meta == nullptr) continue;
    require(!meta->sharding().has_partial(), entry.name, ": gradient ", i, " is ", meta->sharding(),
            ": its addends may be finite where it is not; redistribute it first");
    const DeviceMesh& mesh = meta->sharding().mesh();
    if (std::ranges::find(meshes, mesh) == meshes.end()) meshes.push_back(mesh);
  }
  for (const at::Tensor& grad : grads) {  // before anything is written
    if (const ShardedMeta* meta = sharded_meta(grad)) check_reduction(entry, meta->sharding());
  }
  at::_amp_foreach_non_finite_check_and_unscale_(locals, found, scale);
  const comm::CallSite site({.op = entry.name, .implicit = true});
  // Meshes may overlap in some ranks only: each round propagates a flag by one mesh.
  for (size_t round = 0; round < meshes.size(); ++round) {
    for (const DeviceMesh& mesh : meshes) reduce_max(mesh, found);
  }
  return true;
}

/// _amp_update_scale_(scale, growth_tracker, found_inf, ...): the same on every rank.
bool update_scale(const OpEntry& entry, const c10::OperatorHandle& op, Stack& stack) {
  const size_t base = stack.size() - entry.args.size();
  const c10::IValue scale = stack[base];
  const char* names[] = {"scale", "growth_tracker", "found_inf"};
  for (size_t i = 0; i < 3; ++i) {
    stack[base + i] = same_everywhere(entry, stack[base + i].toTensor(), names[i]);
  }
  op.callBoxed(&stack);
  stack.back() = scale;
  return true;
}

}  // namespace

void install_amp() {
  set_decomposition("aten::_amp_foreach_non_finite_check_and_unscale_", unscale);
  set_decomposition("aten::_amp_update_scale_", update_scale);
}

}  // namespace tessera::dtensor
