#include "tessera/dtensor/parts/scatter.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/equal.h>

#include <torch/csrc/distributed/c10d/Backend.hpp>

#include "tessera/base/errors.h"
#include "tessera/comm/world.h"
#include "tessera/exec/redistribute.h"
#include "tessera/observe/call_site.h"
#include "tessera/sharding/local_shape.h"

namespace tessera::dtensor {
namespace {

/// `sharding` with each replicated axis sharding the largest dim instead, where it divides evenly.
Sharding fully_sharded(const Sharding& sharding) {
  Sharding out = sharding;
  for (int axis = 0; axis < sharding.mesh().ndim(); ++axis) {
    if (!out.placement(axis).is_replicate()) continue;
    const auto local = max_local_shape(out);
    const auto largest = std::ranges::max_element(local);
    if (largest == local.end() || *largest % sharding.mesh().size(axis) != 0) continue;
    out = out.with(axis, Shard(static_cast<int>(largest - local.begin())));
  }
  return out;
}

}  // namespace

DeviceMesh mesh_of_source(const DeviceMesh& mesh, int source) {
  require(source >= 0 && source < mesh.size(), "distribute_tensor from rank number ", source,
          " of mesh ", mesh, ", which has ", mesh.size());
  const int rank = mesh.ranks()[static_cast<size_t>(source)];
  return DeviceMesh({{"source", 1}}, std::vector<int>{rank}, mesh.device()).in_world(mesh.world());
}

at::Tensor scatter_from(const at::Tensor& full, int source, const Sharding& sharding) {
  const Sharding at_source(mesh_of_source(sharding.mesh(), source), {Replicate()},
                           {sharding.shape().begin(), sharding.shape().end()},
                           {.dtype = sharding.dtype()});
  const comm::CallSite site({.op = "distribute_tensor"});
  const Sharding parts = fully_sharded(sharding);
  const at::Tensor part = exec::redistribute(full.contiguous(), at_source, parts);
  return exec::redistribute(part, parts, sharding, {.may_alias = true, .consume = true});
}

void check_replicas(const at::Tensor& local, const Sharding& sharding) {
  const auto& mesh = sharding.mesh();
  for (int axis = 0; axis < mesh.ndim(); ++axis) {
    if (!sharding.placement(axis).is_replicate() || mesh.size(axis) == 1) continue;
    const auto group = comm::group_of(mesh, std::span<const int>(&axis, 1));
    std::vector<at::Tensor> first = {local.detach().clone(at::MemoryFormat::Contiguous)};
    auto& backend = group->backend(local.device().type());
    backend.broadcast(first)->wait();
    std::vector<at::Tensor> same = {at::empty({1}, local.options().dtype(at::kInt))};
    same[0].fill_(at::equal(first[0], local) ? 1 : 0);
    c10d::AllreduceOptions all;
    all.reduceOp = c10d::ReduceOp::MIN;
    backend.allreduce(same, all)->wait();
    require(same[0].item<int>() == 1, "from_local: the ranks along axis ", mesh.axis_name(axis),
            " bring different values for a tensor that ", sharding, " says is replicated there");
  }
}

}  // namespace tessera::dtensor
