#pragma once

#include <ostream>

#include "tessera/dtensor/dispatch/caches.h"

/// The number of entries in the caches, to compare before and after: what has warmed up adds none.
namespace tessera::test {

struct KeptEntries {
  explicit KeptEntries(const CacheStats& stats = cache_stats())
      : decisions(stats.decisions),
        plans(stats.plans),
        programs(stats.programs),
        shardings(stats.shardings) {}
  bool operator==(const KeptEntries&) const = default;

  uint64_t decisions, plans, programs, shardings;
};

inline std::ostream& operator<<(std::ostream& out, const KeptEntries& kept) {
  return out << kept.decisions << " decisions, " << kept.plans << " plans, " << kept.programs
             << " programs, " << kept.shardings << " shardings";
}

}  // namespace tessera::test
