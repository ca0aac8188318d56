#include <ATen/ops/index.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/topk.h>
#include <ATen/ops/zeros.h>
#include <c10/core/WrapDimMinimal.h>

#include <algorithm>

#include "tessera/dtensor/dispatch/dispatch.h"
#include "tessera/dtensor/dispatch/register.h"
#include "tessera/dtensor/held_indexes.h"
#include "tessera/dtensor/ops/handlers.h"
#include "tessera/dtensor/ops/side_by_side.h"
#include "tessera/exec/redistribute.h"
#include "tessera/observe/call_site.h"
#include "tessera/sharding/local_shape.h"

/// topk along a sharded dim: each of the global top k is among the top k of its rank. Each rank
/// sends its own top k, and every rank selects the top k of those. The choice among equal elements
/// is unspecified, as in libtorch, but the same on all ranks.
namespace tessera::dtensor {
namespace {

/// The candidates of all ranks, in slots, of which some may be unused.
///
///   [10] over 4 ranks, k = 2:   parts 3,3,3,1   slots 2,2,2,2   used 0 1 2 3 4 5 6
struct Candidates {
  ConcatenatedParts slots;
  int64_t of_each = 0;        ///< slots per rank
  std::vector<int64_t> used;  ///< indexes of used slots
};

/// Whether a rank differs from this one only on axes that shard the dim.
bool is_along(const Coordinate& rank, const Coordinate& mine, std::span<const int> axes) {
  for (size_t axis = 0; axis < mine.size(); ++axis) {
    const bool cuts = std::ranges::find(axes, static_cast<int>(axis)) != axes.end();
    if (!cuts && rank[axis] != mine[axis]) return false;
  }
  return true;
}

Candidates lay_out(const Sharding& from, int dim, int64_t k) {
  const DeviceMesh& mesh = from.mesh();
  const auto d = static_cast<size_t>(dim);
  Candidates out;
  out.of_each = std::min(k, max_local_shape(from)[d]);
  out.slots = side_by_side(from, dim, out.of_each);
  for (const int rank : mesh.ranks()) {
    const Coordinate at = *mesh.coordinate_of(rank);
    if (!is_along(at, *mesh.my_coordinate(), from.axes_of_dim(dim))) continue;
    for (const Interval& slots : held_intervals(out.slots.apart, dim, at)) {
      const int64_t has = std::min(out.of_each, tessera::local_shape(from, at)[d]);
      for (int64_t i = 0; i < has; ++i) out.used.push_back(slots.begin + i);
    }
  }
  std::ranges::sort(out.used);
  return out;
}

/// Gathers the candidates of all ranks into their slots.
at::Tensor exchange(const at::Tensor& mine, const Candidates& candidates, int dim) {
  std::vector<int64_t> shape = mine.sizes().vec();
  shape[static_cast<size_t>(dim)] = candidates.of_each;
  at::Tensor slots = mine;
  if (!mine.sizes().equals(shape)) {
    slots = at::zeros(shape, mine.options());
    slots.narrow(dim, 0, mine.size(dim)).copy_(mine);
  }
  const auto dtype = static_cast<DType>(mine.scalar_type());
  const at::Tensor all =
      exec::redistribute(slots.contiguous(), candidates.slots.apart.with_dtype(dtype),
                         candidates.slots.together.with_dtype(dtype), {.may_alias = true});
  if (static_cast<int64_t>(candidates.used.size()) == all.size(dim)) return all;
  return all.index_select(dim, at::tensor(candidates.used, at::kLong).to(all.device()));
}

/// Whether this handler takes the call: the dim is sharded, and the candidates with their positions
/// are smaller than the dim itself.
bool pays(const ShardedMeta& self, int dim, int64_t k) {
  const Sharding& from = self.sharding();
  if (from.has_partial() || !from.mesh().contains_me() || from.axes_of_dim(dim).empty())
    return false;
  const int64_t size = from.shape()[static_cast<size_t>(dim)];
  if (k < 0 || k > size || from.numel() == 0) return false;  // libtorch reports the error
  int64_t sent = std::min(k, max_local_shape(from)[static_cast<size_t>(dim)]);
  for (const int axis : from.axes_of_dim(dim)) sent *= from.mesh().size(axis);
  const int64_t bytes = dtype_bytes(from.dtype());
  return sent * (bytes + dtype_bytes(DType::i64)) < size * bytes;
}

/// topk(self, k, dim, largest, sorted)
bool topk(const OpEntry& entry, const c10::OperatorHandle&, Stack& stack) {
  const auto args = torch::jit::last(stack, entry.args.size());
  const at::Tensor self = args[0].toTensor();
  const ShardedMeta* meta = sharded_meta(self);
  if (meta == nullptr || self.dim() == 0) return false;
  const int64_t k = args[1].toInt();
  const auto dim = static_cast<int>(c10::maybe_wrap_dim(args[2].toInt(), self.dim()));
  if (!pays(*meta, dim, k)) return false;
  const bool largest = args[3].toBool();
  const bool sorted = args[4].toBool();
  const Sharding& from = meta->sharding();
  check_reduction(entry, from);

  const Candidates candidates = lay_out(from, dim, k);
  const at::Tensor& local = meta->local();
  const int64_t has = std::min(k, local.size(dim));
  const auto [value, index] = at::topk(local, has, dim, largest, /*sorted=*/true);
  const auto held = HeldIndexes::by_dim(from)[static_cast<size_t>(dim)];
  const at::Tensor place =  // not take(): unsupported for meta tensors
      at::index(at::tensor(held, at::kLong).to(local.device()), {std::optional(index)});

  const comm::CallSite site({.op = entry.name, .implicit = true});
  const auto [values, order] = at::topk(exchange(value, candidates, dim), k, dim, largest, sorted);
  const at::Tensor places = exchange(place, candidates, dim).gather(dim, order);

  std::vector<int64_t> shape(from.shape().begin(), from.shape().end());
  shape[static_cast<size_t>(dim)] = k;
  const Sharding made = candidates.slots.together.with_shape(shape);
  torch::jit::drop(stack, entry.args.size());
  torch::jit::push(stack, wrap(values, made), wrap(places, made.with_dtype(DType::i64)));
  return true;
}

}  // namespace

void install_topk() { set_handler("aten::topk", topk); }

}  // namespace tessera::dtensor
