#pragma once

#include <cstdint>

#include "tessera/base/api.h"

/// What the library keeps in order to be fast: for reports, and to find programs that stay cold.
///
///   const CacheStats before = cache_stats();
///   train_step();
///   cache_stats().decision_misses - before.decision_misses   // 0 after the first steps
///
/// Misses in every step mean that every step has new shapes: each op then pays for a decision, each
/// redistribution for a plan. All caches are bounded, so memory does not grow with the number of
/// shapes.
namespace tessera {

/// Counted for the process: ranks that are threads share the numbers.
struct TESSERA_API CacheStats {
  uint64_t decisions = 0;  ///< how an op runs on given shardings; each thread has its own
  uint64_t decision_hits = 0;
  uint64_t decision_misses = 0;
  uint64_t decision_bytes = 0;  ///< approximate
  uint64_t plans = 0;           ///< redistributions, as steps
  uint64_t plan_hits = 0;
  uint64_t plan_misses = 0;
  uint64_t programs = 0;      ///< plans compiled for a rank: groups and buffers resolved
  uint64_t shardings = 0;     ///< distinct Sharding values in use
  uint64_t pooled_bytes = 0;  ///< host memory of freed message buffers, kept for the next ones
};

TESSERA_API CacheStats cache_stats();

/// Frees decisions, plans, programs and pooled memory; all are made again when needed. A thread
/// drops its decisions at its next op. Safe at any time, also on one rank alone.
TESSERA_API void clear_caches();

}  // namespace tessera
