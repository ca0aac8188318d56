#include "tessera/exec/reuse_mark.h"

#include <utility>

#include "tessera/mesh/per_mesh.h"

namespace tessera::exec {
namespace {

/// Separate, since reading it needs no check for initialization.
constinit thread_local bool any_reuse = false;
thread_local PerMesh<uint64_t> reuses;

}  // namespace

uint64_t moved_axes(const Sharding& from, const Sharding& to) {
  const int axes = from.mesh().ndim();
  const bool same_order =
      (from.has_default_order() && to.has_default_order()) || from.order() == to.order();
  uint64_t moved = 0;
  for (int axis = 0; axis < axes; ++axis) {
    const Placement& before = from.placement(axis);
    const bool differs = before != to.placement(axis) || (!same_order && before.is_sharded());
    if (differs && from.mesh().size(axis) > 1) moved |= uint64_t{1} << axis;
  }
  return moved;
}

void count_reuse(const Sharding& from, const Sharding& to) {
  const uint64_t axes = moved_axes(from, to);
  if (axes == 0) return;
  any_reuse = true;
  ++reuses.of(from.mesh(), axes);
}

uint64_t take_reuse_mark(const Sharding& from, const Sharding& to) {
  if (from.mesh() != to.mesh()) return 0;
  const uint64_t axes = moved_axes(from, to);
  return axes << 32 | (any_reuse ? 1 + std::exchange(reuses.of(from.mesh(), axes), 0) : 1);
}

}  // namespace tessera::exec
