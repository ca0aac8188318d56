#include "tessera/dtensor/buckets.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <c10/core/GradMode.h>

#include <algorithm>
#include <numeric>
#include <optional>

#include "tessera/base/errors.h"
#include "tessera/dtensor/dtensor.h"
#include "tessera/dtensor/parts/scatter.h"
#include "tessera/dtensor/tensor/layout.h"
#include "tessera/dtensor/tensor/sharded_tensor.h"
#include "tessera/exec/redistribute.h"
#include "tessera/observe/call_site.h"
#include "tessera/sharding/local_shape.h"

namespace tessera::dtensor {
namespace {

int64_t bytes_of(const Sharding& as) { return as.numel() * dtype_bytes(as.dtype()); }

/// Calls flush(indexes) for lists of items with equal keys and at most kBucketBytes, and alone(i)
/// for items without a key, in an order determined by keys and sizes only.
template <class Key, class Flush, class Alone>
void for_each_bucket(std::span<const std::optional<Key>> keys, std::span<const int64_t> bytes,
                     const Flush& flush, const Alone& alone) {
  struct Bucket {
    Key key;
    std::vector<size_t> items;
    int64_t bytes = 0;
  };
  std::vector<Bucket> open;  // linear search: there are few distinct keys
  for (size_t i = 0; i < keys.size(); ++i) {
    if (!keys[i] || bytes[i] > kBucketBytes) {
      alone(i);
      continue;
    }
    auto bucket = std::ranges::find(open, *keys[i], &Bucket::key);
    if (bucket == open.end()) bucket = open.insert(open.end(), Bucket{*keys[i], {}, 0});
    if (bucket->bytes + bytes[i] > kBucketBytes) {
      flush(bucket->items);
      bucket->items.clear();
      bucket->bytes = 0;
    }
    bucket->items.push_back(i);
    bucket->bytes += bytes[i];
  }
  for (const Bucket& bucket : open) flush(bucket.items);
}

/// The key: what tensors must have in common to share a message.
struct Kind {
  DeviceMesh mesh;
  std::vector<Placement> placements;  // by axis, reduced to what matters here
  DType dtype = DType::f32;
  c10::Device device = c10::kCPU;
  bool operator==(const Kind& other) const {
    return mesh == other.mesh && placements == other.placements && dtype == other.dtype &&
           device == other.device;
  }
};

/// Shard(0) for an axis that shards the tensor in any way, else Replicate.
std::vector<Placement> shard_or_replicate(const Sharding& as) {
  std::vector<Placement> out;
  for (const Placement& p : as.placements()) out.push_back(p.is_sharded() ? Shard(0) : Replicate());
  return out;
}

/// Calls copy(slice of part, slice of whole) for each overlap of a rank's part with the whole
/// tensor.
template <class Copy>
void for_each_overlap(const Sharding& as, std::span<const int> coordinate, const at::Tensor& part,
                      const at::Tensor& whole, const Copy& copy) {
  const auto visit = [&](const auto& self, int dim, const at::Tensor& p,
                         const at::Tensor& w) -> void {
    while (dim < as.ndim() && as.axes_of_dim(dim).empty()) ++dim;
    if (dim == as.ndim()) return copy(p, w);
    int64_t from = 0;
    for (const Interval& held : held_intervals(as, dim, coordinate)) {
      self(self, dim + 1, p.narrow(dim, from, held.size()), w.narrow(dim, held.begin, held.size()));
      from += held.size();
    }
  };
  if (part.numel() > 0) visit(visit, 0, part, whole);
}

at::Tensor part_in(const at::Tensor& flat, int64_t at, const Sharding& as,
                   std::span<const int> coordinate) {
  const auto shape = local_shape(as, coordinate);
  return flat.narrow(0, at, local_numel(as, coordinate)).view(as_ints(shape));
}

/// The ranks of a mesh as a one-axis mesh.
DeviceMesh as_one_axis(const DeviceMesh& mesh) {
  return DeviceMesh({{"ranks", mesh.size()}},
                    std::vector<int>(mesh.ranks().begin(), mesh.ranks().end()), mesh.device())
      .in_world(mesh.world());
}

DeviceMesh of_axes(const DeviceMesh& mesh, std::span<const Placement> placements, bool sharded) {
  std::vector<std::string> names;
  for (int axis = 0; axis < mesh.ndim(); ++axis) {
    if (placements[static_cast<size_t>(axis)].is_sharded() == sharded) {
      names.push_back(mesh.axis_name(axis));
    }
  }
  return names.empty() ? DeviceMesh() : mesh.submesh(names);
}

Sharding flat_sharding(const DeviceMesh& mesh, std::vector<Placement> placements, int64_t size,
                       DType dtype) {
  return Sharding(mesh, std::move(placements), {size}, {.dtype = dtype});
}

std::vector<Placement> on_all_axes(const DeviceMesh& mesh, const Placement& placement) {
  return std::vector<Placement>(static_cast<size_t>(mesh.ndim()), placement);
}

/// One message of scatter_all_from. Every rank receives its share of a flat buffer of its parts;
/// ranks with the same parts receive disjoint shares and all_gather them.
class FlatScatter {
 public:
  FlatScatter(std::span<const Sharding> shardings, const std::vector<size_t>& items, Kind kind)
      : shardings_(shardings),
        items_(items),
        kind_(std::move(kind)),
        copies_(of_axes(kind_.mesh, kind_.placements, /*sharded=*/false)) {}

  void run(std::span<const at::Tensor> fulls, int source, std::vector<at::Tensor>& out) const {
    const DeviceMesh holder = mesh_of_source(kind_.mesh, source);
    std::vector<int64_t> sizes;
    for (const int rank : kind_.mesh.ranks()) {
      const Interval share = share_of(rank);
      sizes.push_back(share.size());
    }
    const int64_t total = std::accumulate(sizes.begin(), sizes.end(), int64_t{0});
    const auto options = at::TensorOptions(static_cast<at::ScalarType>(kind_.dtype))
                             .device(fulls[items_[0]].device());
    const Coordinate me = *kind_.mesh.my_coordinate();
    at::Tensor mine = at::empty({numel_at(me)}, options);
    if (total > 0) {
      const at::Tensor packed =
          holder.contains_me() ? pack(fulls, options, total) : at::empty({0}, options);
      const at::Tensor share = exec::redistribute(
          packed, flat_sharding(holder, {Replicate()}, total, kind_.dtype),
          flat_sharding(as_one_axis(kind_.mesh), {RaggedShard(0, sizes)}, total, kind_.dtype));
      mine = gather_copies(share, me);
    }
    int64_t at = 0;
    for (const size_t i : items_) {
      const at::Tensor part = part_in(mine, at, shardings_[i], me);
      out[i] = part;
      at += part.numel();
    }
  }

 private:
  int64_t numel_at(std::span<const int> coordinate) const {
    int64_t sum = 0;
    for (const size_t i : items_) sum += local_numel(shardings_[i], coordinate);
    return sum;
  }

  /// How the parts at a coordinate are split among the ranks that hold copies of them.
  Sharding shares(int64_t numel) const {
    return flat_sharding(copies_, on_all_axes(copies_, Shard(0)), numel, kind_.dtype);
  }

  Interval share_of(int rank) const {
    const Coordinate at = *kind_.mesh.coordinate_of(rank);
    const int64_t numel = numel_at(at);
    if (!copies_.defined()) return {0, numel};
    Coordinate among;
    for (const MeshAxis& axis : copies_.axes()) {
      among.push_back(at[static_cast<size_t>(kind_.mesh.axis(axis.name))]);
    }
    const auto held = held_intervals(shares(numel), 0, among);
    return held.empty() ? Interval{numel, numel} : held[0];
  }

  at::Tensor pack(std::span<const at::Tensor> fulls, const at::TensorOptions& options,
                  int64_t total) const {
    at::Tensor packed = at::empty({total}, options);
    const bool all_replicated = copies_.defined() && copies_.ndim() == kind_.mesh.ndim();
    at::Tensor parts;  // packed once if they are the same for all ranks
    int64_t at = 0;
    for (const int rank : kind_.mesh.ranks()) {
      const Coordinate coordinate = *kind_.mesh.coordinate_of(rank);
      const Interval share = share_of(rank);
      if (share.size() == 0) continue;
      if (!parts.defined() || !all_replicated) parts = parts_at(fulls, options, coordinate);
      packed.narrow(0, at, share.size()).copy_(parts.narrow(0, share.begin, share.size()));
      at += share.size();
    }
    return packed;
  }

  at::Tensor parts_at(std::span<const at::Tensor> fulls, const at::TensorOptions& options,
                      const Coordinate& coordinate) const {
    at::Tensor parts = at::empty({numel_at(coordinate)}, options);
    int64_t at = 0;
    for (const size_t i : items_) {
      const at::Tensor part = part_in(parts, at, shardings_[i], coordinate);
      for_each_overlap(shardings_[i], coordinate, part, fulls[i],
                       [](const at::Tensor& p, const at::Tensor& w) { p.copy_(w); });
      at += part.numel();
    }
    return parts;
  }

  at::Tensor gather_copies(const at::Tensor& share, const Coordinate& me) const {
    if (!copies_.defined() || copies_.size() == 1) return share;
    const Sharding ragged = shares(numel_at(me));
    return exec::redistribute(share, ragged, ragged.replicated());
  }

  std::span<const Sharding> shardings_;
  const std::vector<size_t>& items_;
  Kind kind_;
  DeviceMesh copies_;  // the axes that shard none of the tensors; undefined if there are none
};

}  // namespace

std::vector<at::Tensor> scatter_all_from(std::span<const at::Tensor> fulls, int source,
                                         std::span<const Sharding> shardings) {
  const c10::AutoGradMode no_grad(false);
  const comm::CallSite site({.op = "distribute_tensor"});
  std::vector<std::optional<Kind>> keys;
  std::vector<int64_t> bytes;
  for (size_t i = 0; i < fulls.size(); ++i) {
    const Sharding& as = shardings[i];
    keys.push_back(Kind{as.mesh(), shard_or_replicate(as), as.dtype(), fulls[i].device()});
    bytes.push_back(bytes_of(as));
  }
  std::vector<at::Tensor> out(fulls.size());
  const auto alone = [&](size_t i) { out[i] = scatter_from(fulls[i], source, shardings[i]); };
  for_each_bucket<Kind>(
      keys, bytes,
      [&](const std::vector<size_t>& items) {
        if (items.size() == 1) return alone(items[0]);
        FlatScatter(shardings, items, *keys[items[0]]).run(fulls, source, out);
      },
      alone);
  return out;
}

namespace {

/// One message of gather_full_tensors: an all_gather of the ranks' parts, which are then copied
/// out.
void gather_flat(std::span<const at::Tensor> locals, std::span<const Sharding> shardings,
                 const std::vector<size_t>& items, const Kind& kind, const TakeFull& take) {
  const DeviceMesh shard_mesh = of_axes(kind.mesh, kind.placements, /*sharded=*/true);
  std::vector<int64_t> sizes;
  for (const int rank : shard_mesh.ranks()) {
    const Coordinate at = *kind.mesh.coordinate_of(rank);
    int64_t sum = 0;
    for (const size_t i : items) sum += local_numel(shardings[i], at);
    sizes.push_back(sum);
  }
  const int64_t total = std::accumulate(sizes.begin(), sizes.end(), int64_t{0});
  std::vector<at::Tensor> mine;
  for (const size_t i : items) mine.push_back(locals[i].reshape({-1}));
  const Sharding ragged =
      flat_sharding(as_one_axis(shard_mesh), {RaggedShard(0, std::move(sizes))}, total, kind.dtype);
  at::Tensor all = at::cat(mine);
  if (total > 0) all = exec::redistribute(all, ragged, ragged.replicated());
  if (!take) return;
  std::vector<at::Tensor> wholes;
  for (const size_t i : items) {
    wholes.push_back(at::empty(as_ints(shardings[i].shape()), locals[i].options()));
  }
  int64_t at = 0;
  for (const int rank : shard_mesh.ranks()) {
    const Coordinate coordinate = *kind.mesh.coordinate_of(rank);
    for (size_t n = 0; n < items.size(); ++n) {
      const Sharding& as = shardings[items[n]];
      const at::Tensor part = part_in(all, at, as, coordinate);
      for_each_overlap(as, coordinate, part, wholes[n],
                       [](const at::Tensor& p, const at::Tensor& w) { w.copy_(p); });
      at += part.numel();
    }
  }
  for (size_t n = 0; n < items.size(); ++n) take(items[n], std::move(wholes[n]));
}

}  // namespace

void gather_full_tensors(std::span<const at::Tensor> tensors, const TakeFull& take) {
  const c10::AutoGradMode no_grad(false);
  std::vector<std::optional<Kind>> keys;
  std::vector<int64_t> bytes;
  std::vector<at::Tensor> locals;
  std::vector<Sharding> shardings;
  for (const at::Tensor& tensor : tensors) {
    const Sharding& as = sharding(tensor);
    const bool packs = as.has_sharded() && !as.has_partial() && as.mesh().contains_me();
    shardings.push_back(as);
    locals.push_back(packs ? to_local(tensor.detach()) : at::Tensor());
    keys.push_back(packs ? std::optional(Kind{as.mesh(), shard_or_replicate(as), as.dtype(),
                                              locals.back().device()})
                         : std::nullopt);
    bytes.push_back(bytes_of(as));
  }
  const auto alone = [&](size_t i) {
    at::Tensor full = full_tensor(tensors[i].detach());
    if (take) take(i, std::move(full));
  };
  for_each_bucket<Kind>(
      keys, bytes,
      [&](const std::vector<size_t>& items) {
        if (items.size() == 1) return alone(items[0]);
        gather_flat(locals, shardings, items, *keys[items[0]], take);
      },
      alone);
}

namespace {

/// Partial for axes to be reduced, Replicate for unchanged ones; nullopt if the tensor needs more.
std::optional<std::vector<Placement>> reduced_axes(const Sharding& from, const Sharding& to) {
  if (!(from.mesh() == to.mesh()) || from.dtype() != to.dtype() || !from.has_partial() ||
      from.order() != to.order() || !from.mesh().contains_me()) {
    return std::nullopt;
  }
  std::vector<Placement> out;
  for (int axis = 0; axis < from.mesh().ndim(); ++axis) {
    const Placement& p = from.placement(axis);
    const bool reduces = p.is_partial() && to.placement(axis).is_replicate();
    if (!reduces && (p.is_partial() || !(p == to.placement(axis)))) return std::nullopt;
    out.push_back(reduces ? p : Replicate());
  }
  return out;
}

/// One message of reduce_all. Axes that are not reduced involve no communication, so each rank's
/// parts are treated as separate whole tensors.
void reduce_flat(std::span<const at::Tensor> locals, std::span<const Sharding> targets,
                 const std::vector<size_t>& items, const Kind& kind, std::vector<at::Tensor>& out) {
  std::vector<at::Tensor> mine;
  for (const size_t i : items) mine.push_back(locals[i].reshape({-1}));
  at::Tensor all = at::cat(mine);
  if (all.numel() > 0) {
    const Sharding partial = flat_sharding(kind.mesh, kind.placements, all.numel(), kind.dtype);
    all = exec::redistribute(all, partial, partial.replicated(),
                             {.may_alias = true, .consume = true});
  }
  int64_t at = 0;
  for (const size_t i : items) {
    const at::Tensor part = all.narrow(0, at, locals[i].numel()).view(locals[i].sizes());
    out[i] = wrap(strided_as(part, targets[i]), targets[i]);
    at += part.numel();
  }
}

}  // namespace

std::vector<at::Tensor> reduce_all(std::span<const at::Tensor> tensors,
                                   std::span<const Sharding> targets) {
  const c10::AutoGradMode no_grad(false);
  std::vector<std::optional<Kind>> keys;
  std::vector<int64_t> bytes;
  std::vector<at::Tensor> locals;
  for (size_t i = 0; i < tensors.size(); ++i) {
    const Sharding& from = sharding(tensors[i]);
    const auto axes = reduced_axes(from, targets[i]);
    locals.push_back(axes ? to_local(tensors[i].detach()) : at::Tensor());
    keys.push_back(
        axes ? std::optional(Kind{from.mesh(), *axes, from.dtype(), locals.back().device()})
             : std::nullopt);
    bytes.push_back(bytes_of(from));
  }
  std::vector<at::Tensor> out(tensors.size());
  const auto alone = [&](size_t i) { out[i] = redistribute(tensors[i].detach(), targets[i]); };
  for_each_bucket<Kind>(
      keys, bytes,
      [&](const std::vector<size_t>& items) {
        if (items.size() == 1) return alone(items[0]);
        reduce_flat(locals, targets, items, *keys[items[0]], out);
      },
      alone);
  return out;
}

}  // namespace tessera::dtensor
