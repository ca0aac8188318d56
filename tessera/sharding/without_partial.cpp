#include "tessera/sharding/without_partial.h"

namespace tessera {

Sharding without_partial(const Sharding& sharding) {
  if (!sharding.has_partial()) return sharding;
  std::vector<Placement> placements(sharding.placements().begin(), sharding.placements().end());
  for (auto& placement : placements) {
    if (placement.is_partial()) placement = Replicate();
  }
  return sharding.with_placements(std::move(placements), sharding.order());
}

}  // namespace tessera
