#include <ATen/TensorOperators.h>
#include <ATen/ops/argmax.h>
#include <ATen/ops/argmin.h>
#include <ATen/ops/full.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>
#include <c10/core/WrapDimMinimal.h>

#include <limits>
#include <optional>

#include "tessera/dtensor/dispatch/dispatch.h"
#include "tessera/dtensor/dispatch/register.h"
#include "tessera/dtensor/held_indexes.h"
#include "tessera/dtensor/ops/handlers.h"
#include "tessera/dtensor/ops/side_by_side.h"
#include "tessera/exec/redistribute.h"
#include "tessera/observe/call_site.h"

/// argmax, argmin, max and min along a sharded dim: each rank finds its own extreme, then the ranks
/// compare them. One small all_gather, where the rule alone would gather the tensor.
namespace tessera::dtensor {
namespace {

enum class Wanted : uint8_t { largest, smallest };

/// What one rank found: values, and their positions in the global dim. An empty part, or a tensor
/// without values on a planning mesh, has no position.
struct Found {
  at::Tensor value;
  at::Tensor place;
};

constexpr int64_t kNowhere = std::numeric_limits<int64_t>::max();

Found nothing(std::vector<int64_t> shape, const at::Tensor& local) {
  return {at::zeros(shape, local.options()),
          at::full(shape, kNowhere, local.options().dtype(at::kLong))};
}

/// argmax does not accept bool, max does.
at::Tensor arg_of(const at::Tensor& values, std::optional<int64_t> dim, bool keep, Wanted wanted) {
  const at::Tensor ordered = values.scalar_type() == at::kBool ? values.to(at::kByte) : values;
  return wanted == Wanted::largest ? at::argmax(ordered, dim, keep)
                                   : at::argmin(ordered, dim, keep);
}

/// Along one dim, which is kept with size 1.
Found find_along(const at::Tensor& local, int64_t dim, const std::vector<int64_t>& held,
                 Wanted wanted) {
  if (held.empty() || local.is_meta()) {
    std::vector<int64_t> shape(local.sizes().begin(), local.sizes().end());
    shape[static_cast<size_t>(dim)] = 1;
    return nothing(shape, local);
  }
  const at::Tensor index = arg_of(local, dim, true, wanted);
  const at::Tensor places = at::tensor(held, at::kLong).to(local.device());
  return {local.gather(dim, index), places.take(index)};
}

/// Over all elements; positions are row-major indexes into the global tensor.
Found find_any(const at::Tensor& local, const HeldIndexes& held, Wanted wanted) {
  if (held.size() == 0 || local.is_meta()) return nothing({1}, local);
  const at::Tensor index = arg_of(local, std::nullopt, false, wanted);
  const int64_t at = index.item<int64_t>();
  int64_t place = 0;
  held.for_runs(at, at + 1, [&](int64_t, int64_t global, int64_t) { place = global; });
  return {local.take(index).view({1}), at::full({1}, place, index.options())};
}

/// The best along a dim, which is kept with size 1; the first position among equals, as on one
/// rank. NaN is both the largest and the smallest, as in libtorch.
Found best_of(const Found& all, int64_t dim, Wanted wanted) {
  const at::Tensor none = all.place.eq(kNowhere);
  const bool floating = all.value.is_floating_point();
  at::Tensor value = all.value;
  // The value of a rank without elements must not win: replace it by that of a rank with some.
  const at::Tensor some = none.to(at::kLong).argmin(dim, true);
  value = at::where(none, value.gather(dim, some).expand_as(value), value);
  const at::Tensor best = value.gather(dim, arg_of(value, dim, true, wanted));
  at::Tensor is_best = value.eq(best);
  if (floating) is_best = is_best.logical_or(value.isnan().logical_and(best.isnan()));
  const at::Tensor place = at::where(is_best, all.place, kNowhere);
  return {best, std::get<0>(place.min(dim, true))};
}

/// The best of what all ranks that shard a dim of `from` found along it, one each.
Found best_of_ranks(const OpEntry& entry, const Found& mine, const Sharding& from, int64_t dim,
                    Wanted wanted) {
  const ConcatenatedParts slots = side_by_side(from, static_cast<int>(dim), 1);
  const comm::CallSite site({.op = entry.name, .implicit = true});
  const auto gathered = [&](const at::Tensor& found) {
    const auto type = static_cast<DType>(found.scalar_type());
    return exec::redistribute(found, slots.apart.with_dtype(type), slots.together.with_dtype(type),
                              {.may_alias = true});
  };
  const Found all = {gathered(mine.value), gathered(mine.place)};
  return best_of(all, dim, wanted);
}

/// The findings, with the sharding of the reduced tensor.
struct Extremes {
  Found found;
  Sharding sharding;
};

Extremes along_cut_dim(const OpEntry& entry, const ShardedMeta& self, int64_t dim, Wanted wanted) {
  const Sharding& from = self.sharding();
  std::vector<Placement> placements(from.placements().begin(), from.placements().end());
  for (const int axis : from.axes_of_dim(static_cast<int>(dim))) {
    placements[static_cast<size_t>(axis)] = Replicate();
  }
  std::vector<int64_t> shape(from.shape().begin(), from.shape().end());
  shape[static_cast<size_t>(dim)] = 1;
  const Sharding reduced(from.mesh(), placements, shape,
                         {.dtype = from.dtype(), .order = from.order()});
  const auto held = HeldIndexes::by_dim(from)[static_cast<size_t>(dim)];
  const Found mine = find_along(self.local(), dim, held, wanted);
  return {best_of_ranks(entry, mine, from, dim, wanted), reduced};
}

/// All elements as one dim, which is sharded by every axis that shards one of theirs.
Extremes of_all(const OpEntry& entry, const ShardedMeta& self, Wanted wanted) {
  const Sharding& from = self.sharding();
  std::vector<Placement> placements(static_cast<size_t>(from.mesh().ndim()));
  const Sharding reduced(from.mesh(), placements, {}, {.dtype = from.dtype()});
  for (int axis = 0; axis < from.mesh().ndim(); ++axis) {
    if (from.placement(axis).is_sharded()) placements[static_cast<size_t>(axis)] = Shard(0);
  }
  const Sharding flat(from.mesh(), placements, {from.numel()}, {.dtype = from.dtype()});
  const Found mine = find_any(self.local(), HeldIndexes(from), wanted);
  const Found best = best_of_ranks(entry, mine, flat, 0, wanted);
  return {{best.value.squeeze(0), best.place.squeeze(0)}, reduced};
}

at::Tensor wrap_reduced(const at::Tensor& local, const Sharding& kept, int64_t dim, bool keepdim) {
  const Sharding typed = kept.with_dtype(static_cast<DType>(local.scalar_type()));
  const at::Tensor whole = wrap(local, typed);
  return keepdim ? whole : whole.squeeze(dim);
}

/// Whether `dim` (-1: any dim) is sharded; otherwise the rule applies.
bool cuts(const at::Tensor& self, int64_t dim) {
  const ShardedMeta* meta = sharded_meta(self);
  if (meta == nullptr || self.numel() == 0) return false;
  const Sharding& sharding = meta->sharding();
  if (sharding.has_partial() || !sharding.mesh().contains_me()) return false;
  return dim < 0 ? sharding.has_sharded() : !sharding.axes_of_dim(static_cast<int>(dim)).empty();
}

template <Wanted wanted>
bool arg_extreme(const OpEntry& entry, const c10::OperatorHandle&, Stack& stack) {
  const auto args = torch::jit::last(stack, entry.args.size());
  const at::Tensor self = args[0].toTensor();
  const bool keepdim = args[2].toBool();
  const int64_t dim = args[1].isNone() ? -1 : c10::maybe_wrap_dim(args[1].toInt(), self.dim());
  if (self.dim() == 0 || !cuts(self, dim)) return false;
  const ShardedMeta& meta = *sharded_meta(self);
  check_reduction(entry, meta.sharding());
  at::Tensor out;
  if (dim < 0) {
    const Extremes extremes = of_all(entry, meta, wanted);
    out = wrap(extremes.found.place, extremes.sharding.with_dtype(DType::i64));
    if (keepdim) out = out.view(std::vector<int64_t>(static_cast<size_t>(self.dim()), 1));
  } else {
    const Extremes extremes = along_cut_dim(entry, meta, dim, wanted);
    out = wrap_reduced(extremes.found.place, extremes.sharding, dim, keepdim);
  }
  torch::jit::drop(stack, entry.args.size());
  torch::jit::push(stack, std::move(out));
  return true;
}

template <Wanted wanted>
bool extreme_and_arg(const OpEntry& entry, const c10::OperatorHandle&, Stack& stack) {
  const auto args = torch::jit::last(stack, entry.args.size());
  const at::Tensor self = args[0].toTensor();
  const int64_t dim = c10::maybe_wrap_dim(args[1].toInt(), self.dim());
  if (self.dim() == 0 || !cuts(self, dim)) return false;
  const ShardedMeta& meta = *sharded_meta(self);
  check_reduction(entry, meta.sharding());
  const Extremes extremes = along_cut_dim(entry, meta, dim, wanted);
  const bool keepdim = args[2].toBool();
  at::Tensor value = wrap_reduced(extremes.found.value, extremes.sharding, dim, keepdim);
  at::Tensor place = wrap_reduced(extremes.found.place, extremes.sharding, dim, keepdim);
  torch::jit::drop(stack, entry.args.size());
  torch::jit::push(stack, std::move(value), std::move(place));
  return true;
}

}  // namespace

void install_arg_extremes() {
  set_handler("aten::argmax", arg_extreme<Wanted::largest>);
  set_handler("aten::argmin", arg_extreme<Wanted::smallest>);
  set_handler("aten::max.dim", extreme_and_arg<Wanted::largest>);
  set_handler("aten::min.dim", extreme_and_arg<Wanted::smallest>);
}

}  // namespace tessera::dtensor
