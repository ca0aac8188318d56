#include "tessera/base/pair_cache.h"
#include "tessera/plan/plan.h"

namespace tessera::plan {
namespace {

PairCache<Sharding, Plan>& the_cache() {
  static auto* cache = new PairCache<Sharding, Plan>(16'384);  // never destroyed, see mesh_table()
  return *cache;
}

}  // namespace

std::shared_ptr<const Plan> cached_plan(const Sharding& from, const Sharding& to) {
  return the_cache().get(from, to, cost::default_machine_version(), [&] {
    return std::make_shared<const Plan>(
        make_plan(from, to, cost::default_machine(from.mesh().device())));
  });
}

CacheStats cache_stats() { return {the_cache().hits(), the_cache().misses(), the_cache().size()}; }

void forget_plans(const World* world) {
  the_cache().erase_if([&](const Sharding& from, const Sharding& to) {
    return from.mesh().world().get() == world || to.mesh().world().get() == world;
  });
}

void clear_cache() { the_cache().clear(); }

}  // namespace tessera::plan
