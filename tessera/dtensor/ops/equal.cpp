#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>

#include <algorithm>

#include "tessera/dtensor/dispatch/decide/row_kernel.h"
#include "tessera/dtensor/dispatch/dispatch.h"
#include "tessera/dtensor/kernels/register.h"
#include "tessera/dtensor/ops/install.h"
#include "tessera/dtensor/ops/reductions.h"

/// equal: each rank compares its parts; the answers are combined.
namespace tessera::dtensor {
namespace {

void equal(const KernelCall& call) {
  const Sharding& a = call.operands[0];
  const Sharding& b = call.operands[1];
  if (!std::ranges::equal(a.shape(), b.shape()) || a.dtype() != b.dtype()) {
    return call.give(false);
  }
  const at::Tensor part = call.args()[0].toTensor();
  const bool here = at::equal(part, call.args()[1].toTensor());
  const std::vector<int> axes = sharded_axes(a);
  if (axes.empty()) return call.give(here);
  const at::Tensor answer = at::full({1}, here ? 1 : 0, part.options().dtype(at::kInt));
  const at::Tensor all = reduce_over_axes(answer, a.mesh(), axes, ReduceOp::min);
  call.give(all.item<int>() == 1);
}

/// A rank outside the mesh compares nothing: what it knows is equal if the metadata is.
bool equal_outside(const OpEntry&, const c10::OperatorHandle&, Stack& stack) {
  const at::Tensor a = torch::jit::peek(stack, 0, 2).toTensor();
  const at::Tensor b = torch::jit::peek(stack, 1, 2).toTensor();
  const ShardedMeta* meta = sharded_meta(a);
  if (meta == nullptr || sharded_meta(b) == nullptr || meta->sharding().mesh().contains_me()) {
    return false;
  }
  torch::jit::drop(stack, 2);
  torch::jit::push(stack, a.sizes() == b.sizes() && a.scalar_type() == b.scalar_type());
  return true;
}

}  // namespace

void install_equal() {
  add_row_kernel("equal", equal);
  set_special_case("aten::equal", equal_outside);
}

}  // namespace tessera::dtensor
