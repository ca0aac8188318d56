#include "tessera/dtensor/ops/side_by_side.h"

namespace tessera::dtensor {

ConcatenatedParts side_by_side(const Sharding& from, int dim, int64_t of_each) {
  std::vector<int64_t> shape(from.shape().begin(), from.shape().end());
  std::vector<Placement> apart(from.placements().begin(), from.placements().end());
  std::vector<Placement> together = apart;
  int64_t& size = shape[static_cast<size_t>(dim)];
  size = of_each;
  for (const int axis : from.axes_of_dim(dim)) {
    size *= from.mesh().size(axis);
    apart[static_cast<size_t>(axis)] = Shard(dim);
    together[static_cast<size_t>(axis)] = Replicate();
  }
  const Sharding parts(from.mesh(), apart, shape, {.dtype = from.dtype(), .order = from.order()});
  return {parts, parts.with_placements(together, from.order())};
}

}  // namespace tessera::dtensor
