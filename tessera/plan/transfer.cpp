#include "tessera/plan/transfer.h"

#include <algorithm>

#include "tessera/base/iota_vector.h"
#include "tessera/plan/canonical.h"
#include "tessera/sharding/local_shape.h"
#include "tessera/sharding/without_partial.h"

namespace tessera::plan {
namespace {

/// Positions in the row-major list of ranks, by rank.
std::vector<size_t> by_rank(const DeviceMesh& mesh) {
  std::vector<size_t> places = iota_vector(mesh.size());
  std::ranges::sort(places, {}, [&](size_t place) { return mesh.ranks()[place]; });
  return places;
}

Coordinate coordinate_at(const DeviceMesh& mesh, size_t place) {
  Coordinate coordinate(static_cast<size_t>(mesh.ndim()));
  for (int axis = mesh.ndim(); axis-- > 0;) {
    const auto size = static_cast<size_t>(mesh.size(axis));
    coordinate[static_cast<size_t>(axis)] = static_cast<int>(place % size);
    place /= size;
  }
  return coordinate;
}

/// Whether both use the same ranks and each holds the same elements. A difference is visible at one
/// of the first ranks.
bool same_parts(const Sharding& a, const Sharding& b) {
  if (a.mesh().size() != b.mesh().size() || a.has_partial() || b.has_partial()) return false;
  const auto in_a = by_rank(a.mesh());
  const auto in_b = by_rank(b.mesh());
  for (size_t i = 0; i < in_a.size(); ++i) {
    if (a.mesh().ranks()[in_a[i]] != b.mesh().ranks()[in_b[i]]) return false;
    const Coordinate at_a = coordinate_at(a.mesh(), in_a[i]);
    const Coordinate at_b = coordinate_at(b.mesh(), in_b[i]);
    for (int dim = 0; dim < a.ndim(); ++dim) {
      if (held_intervals(a, dim, at_a) != held_intervals(b, dim, at_b)) return false;
    }
  }
  return true;
}

/// `sharding` with every partial axis reduced: to a shard if some dim divides, so that fewer bytes
/// are transferred, else replicated.
Sharding without_partials(const Sharding& sharding) {
  Sharding out = sharding;
  for (int axis = 0; axis < sharding.mesh().ndim(); ++axis) {
    if (!sharding.placement(axis).is_partial()) continue;
    Placement reduced = Replicate();
    const auto most = max_local_shape(out);
    for (int dim = 0; dim < sharding.ndim(); ++dim) {
      const int64_t n = most[static_cast<size_t>(dim)];
      if (n > 0 && n % sharding.mesh().size(axis) == 0) {
        reduced = Shard(dim);
        break;
      }
    }
    out = out.with(axis, reduced);
  }
  return out;
}

}  // namespace

std::vector<Step> steps_across_meshes(const Sharding& from, const Sharding& to,
                                      const cost::Machine& machine) {
  const Sharding start = canonical(from);
  const Sharding goal = canonical(to);
  if (same_parts(start, goal)) return {};
  const Sharding reduced = without_partials(start);
  std::vector<Step> steps;
  if (reduced != start) steps = steps_on_one_mesh(start, reduced, machine);

  const Sharding landed = without_partial(goal);
  Step step{Move::transfer, {}, reduced, landed};
  step.bytes = max_local_numel(reduced) * dtype_bytes(from.dtype());
  const int64_t arriving = max_local_numel(landed) * dtype_bytes(from.dtype());
  step.seconds = cost::all_to_all_seconds(
      machine.across_hosts, from.mesh().size() + to.mesh().size(), std::max(step.bytes, arriving));
  steps.push_back(std::move(step));

  if (landed != goal) {
    const auto tail = steps_on_one_mesh(landed, goal, machine);
    steps.insert(steps.end(), tail.begin(), tail.end());
  }
  return steps;
}

}  // namespace tessera::plan
