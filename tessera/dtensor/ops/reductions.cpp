#include "tessera/dtensor/ops/reductions.h"

#include <ATen/TensorOperators.h>

#include "tessera/dtensor/norm_of_parts.h"
#include "tessera/dtensor/ops/install.h"
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
  call.give(norm.root(reduce_cut_axes(call, powers, norm.reduction())).to(result));
}

/// `nll`: nll_loss with mean reduction over a sharded batch. Losses and weights are summed over the
/// ranks, then divided.
void nll(const KernelCall& call) {
  constexpr int64_t kSum = 2;
  const auto& arguments = call.op.schema().arguments();
  for (size_t i = 0; i < arguments.size(); ++i) {
    if (arguments[i].name() == "reduction") call.args()[i] = kSum;
  }
  call.op.callBoxed(&call.stack);
  at::Tensor weight = torch::jit::pop(call.stack).toTensor();
  at::Tensor loss = torch::jit::pop(call.stack).toTensor();
  weight = reduce_cut_axes(call, weight, ReduceOp::sum);
  loss = reduce_cut_axes(call, loss, ReduceOp::sum);
  torch::jit::push(call.stack, loss / weight, weight);
}

}  // namespace

at::Tensor reduce_cut_axes(const KernelCall& call, at::Tensor local, ReduceOp op) {
  const Sharding& operand = call.operands[0];
  const Sharding to = call.results[0].with_dtype(static_cast<DType>(local.scalar_type()));
  Sharding from = to;
  for (int axis = 0; axis < to.mesh().ndim(); ++axis) {
    if (operand.placement(axis).is_sharded() && to.placement(axis).is_replicate()) {
      from = from.with(axis, Partial(op));
    }
  }
  return exec::redistribute(local, from, to, {.may_alias = true, .consume = true});
}

void install_reductions() {
  add_row_kernel("norm", norm);
  add_row_kernel("nll", nll);
}

}  // namespace tessera::dtensor
