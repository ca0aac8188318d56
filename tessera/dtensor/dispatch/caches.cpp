#include "tessera/dtensor/dispatch/caches.h"

#include "tessera/collective/block_pool.h"
#include "tessera/dtensor/dispatch/decide/decision.h"
#include "tessera/exec/program.h"
#include "tessera/plan/plan.h"
#include "tessera/sharding/sharding.h"

namespace tessera {

CacheStats cache_stats() {
  const dtensor::DecisionStats decisions = dtensor::decision_stats();
  const plan::CacheStats plans = plan::cache_stats();
  return {.decisions = decisions.entries,
          .decision_hits = decisions.hits,
          .decision_misses = decisions.misses,
          .decision_bytes = decisions.bytes,
          .plans = plans.entries,
          .plan_hits = plans.hits,
          .plan_misses = plans.misses,
          .programs = exec::cached_programs(),
          .shardings = live_shardings(),
          .pooled_bytes = comm::kept_bytes()};
}

void clear_caches() {
  dtensor::clear_decisions();
  exec::clear_programs();
  plan::clear_cache();
  comm::release_kept_blocks();
}

}  // namespace tessera
