#include <ATen/TensorOperators.h>
#include <ATen/ops/cumsum.h>
#include <ATen/ops/sum.h>
#include <c10/core/WrapDimMinimal.h>

#include <algorithm>

#include "tessera/dtensor/dispatch/dispatch.h"
#include "tessera/dtensor/dispatch/register.h"
#include "tessera/dtensor/layout.h"
#include "tessera/dtensor/ops/handlers.h"
#include "tessera/dtensor/ops/side_by_side.h"
#include "tessera/exec/redistribute.h"
#include "tessera/observe/call_site.h"
#include "tessera/sharding/local_shape.h"

/// cumsum along a sharded dim: each rank sums its own part and adds the totals of the preceding
/// parts. One number per rank and row is communicated; the result has the input's sharding.
namespace tessera::dtensor {
namespace {

/// Whether this handler takes the call: the dim is sharded, and each rank has one contiguous range
/// of it.
bool is_ours(const ShardedMeta* self, int dim) {
  if (self == nullptr) return false;
  const Sharding& from = self->sharding();
  if (from.has_partial() || !from.mesh().contains_me() || from.numel() == 0) return false;
  const auto axes = from.axes_of_dim(dim);
  return !axes.empty() && std::ranges::none_of(axes, [&](int axis) {
    return from.placement(axis).kind() == Placement::Kind::strided;
  });
}

/// The sum of the parts before this rank's.
at::Tensor sum_before(const at::Tensor& of_part, const Sharding& from, int dim) {
  const auto [apart, together] = side_by_side(from, dim, 1);
  const auto dtype = static_cast<DType>(of_part.scalar_type());
  const at::Tensor all = exec::redistribute(of_part.contiguous(), apart.with_dtype(dtype),
                                            together.with_dtype(dtype), {.may_alias = true});
  const auto mine = held_intervals(apart, dim, *from.mesh().my_coordinate());
  return all.narrow(dim, 0, mine.front().begin).sum(dim, /*keepdim=*/true, of_part.scalar_type());
}

/// cumsum(self, dim, dtype?)
bool cumsum(const OpEntry& entry, const c10::OperatorHandle&, Stack& stack) {
  const auto args = torch::jit::last(stack, entry.args.size());
  const at::Tensor self = args[0].toTensor();
  if (self.dim() == 0) return false;
  const auto dim = static_cast<int>(c10::maybe_wrap_dim(args[1].toInt(), self.dim()));
  const ShardedMeta* meta = sharded_meta(self);
  if (!is_ours(meta, dim)) return false;
  const Sharding& from = meta->sharding();
  check_reduction(entry, from);

  const bool integral = at::isIntegralType(self.scalar_type(), /*includeBool=*/true);
  const at::ScalarType made = !args[2].isNone() ? args[2].toScalarType()
                              : integral        ? at::kLong
                                                : self.scalar_type();
  // float16 and bfloat16 are accumulated in float32.
  const at::ScalarType wide = at::isReducedFloatingType(made) ? at::kFloat : made;
  const at::Tensor local = meta->local().to(made).to(wide);
  const comm::CallSite site({.op = entry.name, .implicit = true});
  const at::Tensor before = sum_before(local.sum(dim, /*keepdim=*/true, wide), from, dim);
  const at::Tensor out = at::cumsum(local, dim).add_(before).to(made);
  torch::jit::drop(stack, entry.args.size());
  torch::jit::push(stack, wrap_as_laid_out(out, from.with_dtype(static_cast<DType>(made))));
  return true;
}

}  // namespace

void install_cumsum() { set_handler("aten::cumsum", cumsum); }

}  // namespace tessera::dtensor
