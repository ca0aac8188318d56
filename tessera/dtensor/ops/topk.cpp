#include <ATen/ops/index.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/topk.h>
#include <ATen/ops/zeros.h>

#include <algorithm>

#include "tessera/dtensor/dispatch/decide/row_kernel.h"
#include "tessera/dtensor/ops/install.h"
#include "tessera/dtensor/ops/sharded_dim_rows.h"
#include "tessera/dtensor/ops/side_by_side.h"
#include "tessera/dtensor/parts/held_indexes.h"
#include "tessera/exec/redistribute.h"
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
    const bool shards = std::ranges::find(axes, static_cast<int>(axis)) != axes.end();
    if (!shards && rank[axis] != mine[axis]) return false;
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

/// Offered where the candidates with their positions are smaller than the dim itself.
std::vector<rules::Row> topk_rows(const rules::OpCall& call, int axis) {
  const Sharding self = call.operands()[0];
  const int dim = self.ndim() == 0 ? -1 : named_dim(call, self);
  if (dim < 0 || self.numel() == 0) return {};
  const int64_t size = self.shape()[static_cast<size_t>(dim)];
  const int64_t k = call.int_or("k", 0);
  if (k < 0 || k > size) return {};  // libtorch reports the error
  const int64_t bytes = dtype_bytes(self.dtype());
  std::vector<rules::Row> out;
  for (rules::Row& row : rows_sharding(self, axis, dim)) {
    const bool is_so = row.operands[0] == self.placement(axis);
    int64_t ranks = is_so ? 1 : self.mesh().size(axis);
    for (const int other : self.axes_of_dim(dim)) {
      if (is_so || other != axis) ranks *= self.mesh().size(other);
    }
    const int64_t part =
        is_so ? max_local_shape(self)[static_cast<size_t>(dim)] : (size + ranks - 1) / ranks;
    const int64_t each = std::min(k, part);
    if (each * ranks * (bytes + dtype_bytes(DType::i64)) >= size * bytes) continue;
    row.results = {Replicate(), Replicate()};
    row.comm = rules::KernelComm::combine;
    row.sent = gathered_bytes(
        self, axis, elements_beside(self, axis, dim) * each * (bytes + dtype_bytes(DType::i64)));
    out.push_back(std::move(row));
  }
  return out;
}

/// topk(self, k, dim, largest, sorted)
void topk(const KernelCall& call) {
  const Sharding& from = call.operands[0];
  const auto args = call.args();
  const at::Tensor local = args[0].toTensor();
  const int64_t k = args[1].toInt();
  const int64_t given = args[2].toInt();
  const auto dim = static_cast<int>(given < 0 ? given + from.ndim() : given);
  const bool largest = args[3].toBool();
  const bool sorted = args[4].toBool();

  const Candidates candidates = lay_out(from, dim, k);
  const int64_t has = std::min(k, local.size(dim));
  const auto [value, index] = at::topk(local, has, dim, largest, /*sorted=*/true);
  const at::Tensor held = held_indexes(from, dim, local.device());
  const at::Tensor place =  // not take(): unsupported for meta tensors
      at::index(held, {std::optional(index)});

  const auto [values, order] = at::topk(exchange(value, candidates, dim), k, dim, largest, sorted);
  const at::Tensor places = exchange(place, candidates, dim).gather(dim, order);
  call.give(values, places);
}

}  // namespace

void install_topk() { add_row_kernel("topk", topk, rules::KernelComm::combine, topk_rows); }

}  // namespace tessera::dtensor
