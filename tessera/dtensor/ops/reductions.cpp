#include "tessera/dtensor/ops/reductions.h"

#include <ATen/TensorOperators.h>

#include "tessera/dtensor/ops/install.h"
#include "tessera/dtensor/parts/norm_of_parts.h"
#include "tessera/exec/redistribute.h"

namespace tessera::dtensor {
namespace {

/// `norm`: vector norms over a sharded dim. Powers are summed over the ranks, then the root is
/// taken.
void norm(const KernelCall& call) {
  const at::Tensor self = call.args()[0].toTensor();
  c10::IValue order = call.arg("ord");
  if (order.isNone()) order = call.arg("p");
  const NormOfParts norm{order.isNone() ? 2 : order.toScalar().toDouble()};
  const c10::IValue dims = call.arg("dim");
  const c10::IValue keep = call.arg("keepdim");
  const auto result = static_cast<at::ScalarType>(call.results[0].dtype());
  const auto shape = call.results[0].local_shape();
  NormOfParts::Over over{.keepdim = keep.isBool() && keep.toBool(),
                         .shape = at::IntArrayRef(shape.data(), shape.size())};
  std::vector<int64_t> listed;
  if (dims.isIntList()) listed = dims.toIntVector();
  if (!listed.empty()) over.dims = listed;
  const at::Tensor powers = norm.of_part(self, result, over);
  call.give(norm.root(reduce_over_sharded(call, powers, norm.reduction())).to(result));
}

}  // namespace

Sharding addends_over(const at::Tensor& local, const DeviceMesh& mesh, std::span<const int> axes,
                      ReduceOp op) {
  std::vector<Placement> placements(static_cast<size_t>(mesh.ndim()));
  for (const int axis : axes) placements[static_cast<size_t>(axis)] = Partial(op);
  // The part of other axes is the whole tensor here: only the axes that are reduced communicate.
  return Sharding(mesh, std::move(placements), local.sizes().vec(),
                  {.dtype = static_cast<DType>(local.scalar_type())});
}

at::Tensor reduce_over_axes(at::Tensor local, const DeviceMesh& mesh, std::span<const int> axes,
                            ReduceOp op) {
  if (axes.empty()) return local;
  const Sharding from = addends_over(local, mesh, axes, op);
  return exec::redistribute(local.contiguous(), from, from.replicated(),
                            {.may_alias = true, .consume = true});
}

std::vector<int> reduced_axes(const KernelCall& call) {
  std::vector<int> out;
  const Sharding& to = call.results[0];
  for (int axis = 0; axis < to.mesh().ndim(); ++axis) {
    if (call.operands[0].placement(axis).is_sharded() && to.placement(axis).is_replicate()) {
      out.push_back(axis);
    }
  }
  return out;
}

at::Tensor reduce_over_sharded(const KernelCall& call, at::Tensor local, ReduceOp op) {
  return reduce_over_axes(std::move(local), call.results[0].mesh(), reduced_axes(call), op);
}

std::vector<int> sharded_axes(const Sharding& sharding) {
  std::vector<int> out;
  for (int axis = 0; axis < sharding.mesh().ndim(); ++axis) {
    if (sharding.placement(axis).is_sharded() && sharding.mesh().size(axis) > 1) {
      out.push_back(axis);
    }
  }
  return out;
}

std::vector<int> sharded_axes(const Sharding& sharding, int dim) {
  std::vector<int> out;
  for (const int axis : sharded_axes(sharding)) {
    if (sharding.placement(axis).is_sharded(dim)) out.push_back(axis);
  }
  return out;
}

void install_reductions() { add_row_kernel("norm", norm); }

}  // namespace tessera::dtensor
