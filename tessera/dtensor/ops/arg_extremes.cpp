#include <ATen/TensorOperators.h>
#include <ATen/ops/argmax.h>
#include <ATen/ops/argmin.h>
#include <ATen/ops/full.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>

#include <limits>
#include <optional>

#include "tessera/dtensor/dispatch/decide/row_kernel.h"
#include "tessera/dtensor/ops/install.h"
#include "tessera/dtensor/ops/sharded_dim_rows.h"
#include "tessera/dtensor/ops/side_by_side.h"
#include "tessera/dtensor/parts/held_indexes.h"
#include "tessera/exec/redistribute.h"

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
Found find_along(const at::Tensor& local, int64_t dim, const at::Tensor& held, Wanted wanted) {
  if (held.numel() == 0 || local.is_meta()) {
    std::vector<int64_t> shape(local.sizes().begin(), local.sizes().end());
    shape[static_cast<size_t>(dim)] = 1;
    return nothing(shape, local);
  }
  const at::Tensor index = arg_of(local, dim, true, wanted);
  return {local.gather(dim, index), held.take(index)};
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
Found best_of_ranks(const Found& mine, const Sharding& from, int64_t dim, Wanted wanted) {
  const ConcatenatedParts slots = side_by_side(from, static_cast<int>(dim), 1);
  const auto gathered = [&](const at::Tensor& found) {
    const auto type = static_cast<DType>(found.scalar_type());
    return exec::redistribute(found, slots.apart.with_dtype(type), slots.together.with_dtype(type),
                              {.may_alias = true});
  };
  const Found all = {gathered(mine.value), gathered(mine.place)};
  return best_of(all, dim, wanted);
}

/// Of a dim, which is kept with size 1.
Found along_sharded_dim(const Sharding& from, const at::Tensor& local, int64_t dim, Wanted wanted) {
  const at::Tensor held = held_indexes(from, static_cast<int>(dim), local.device());
  return best_of_ranks(find_along(local, dim, held, wanted), from, dim, wanted);
}

/// All elements as one dim, which is sharded by every axis that shards one of theirs.
Found of_all(const Sharding& from, const at::Tensor& local, Wanted wanted) {
  std::vector<Placement> placements(static_cast<size_t>(from.mesh().ndim()));
  for (int axis = 0; axis < from.mesh().ndim(); ++axis) {
    if (from.placement(axis).is_sharded()) placements[static_cast<size_t>(axis)] = Shard(0);
  }
  const Sharding flat(from.mesh(), placements, {from.numel()}, {.dtype = from.dtype()});
  return best_of_ranks(find_any(local, HeldIndexes(from), wanted), flat, 0, wanted);
}

/// Along a dim, or over all if none is named.
std::vector<rules::Row> extreme_rows(const rules::OpCall& call, int axis) {
  const Sharding self = call.operands()[0];
  if (self.ndim() == 0 || self.numel() == 0) return {};
  const bool all = call.ints("dim").empty();
  const int dim = all ? 0 : named_dim(call, self);
  std::vector<rules::Row> out;
  for (int d = dim; d >= 0 && d < (all ? self.ndim() : dim + 1); ++d) {
    const int64_t found = all ? 1 : elements_beside(self, axis, d);
    for (rules::Row& row : rows_sharding(self, axis, d)) {
      row.results.resize(call.op.starts_with("aten::arg") ? 1 : 2);
      row.comm = rules::KernelComm::combine;
      row.sent =
          gathered_bytes(self, axis, found * (dtype_bytes(self.dtype()) + dtype_bytes(DType::i64)));
      out.push_back(std::move(row));
    }
  }
  return out;
}

/// argmax and argmin(self, dim?, keepdim) give positions; max and min(self, dim, keepdim) values
/// and positions.
void extreme(const KernelCall& call) {
  const Sharding& from = call.operands[0];
  const at::Tensor local = call.args()[0].toTensor();
  const bool keepdim = call.arg("keepdim").toBool();
  const bool is_arg = call.name.starts_with("aten::arg");
  const bool is_max = call.name.starts_with("aten::argmax") || call.name.starts_with("aten::max");
  const Wanted wanted = is_max ? Wanted::largest : Wanted::smallest;
  if (call.arg("dim").isNone()) {
    const at::Tensor place = of_all(from, local, wanted).place;
    return call.give(keepdim ? place.view(std::vector<int64_t>(static_cast<size_t>(from.ndim()), 1))
                             : place.squeeze(0));
  }
  const int64_t given = call.arg("dim").toInt();
  const int64_t dim = given < 0 ? given + from.ndim() : given;
  const Found found = along_sharded_dim(from, local, dim, wanted);
  const auto shaped = [&](const at::Tensor& kept) { return keepdim ? kept : kept.squeeze(dim); };
  if (is_arg) return call.give(shaped(found.place));
  call.give(shaped(found.value), shaped(found.place));
}

}  // namespace

void install_arg_extremes() {
  add_row_kernel("extreme", extreme, rules::KernelComm::combine, extreme_rows);
}

}  // namespace tessera::dtensor
