#pragma once

#include <limits>
#include <unordered_map>

#include "tessera/cost/machine.h"
#include "tessera/plan/plan.h"

namespace tessera::partition {

/// What it takes to bring a tensor from one sharding to another, by the library's plans.
struct MoveCost {
  double seconds = 0;  ///< infinite: not to be done
  int64_t bytes = 0;
  int collectives = 0;
};

class MoveCosts {
 public:
  explicit MoveCosts(cost::Machine machine) : machine_(machine) {}

  const MoveCost& operator()(const Sharding& from, const Sharding& to);
  const cost::Machine& machine() const { return machine_; }

 private:
  struct Key {
    const void* from;
    const void* to;
    bool operator==(const Key&) const = default;
  };
  struct Hash {
    size_t operator()(const Key& key) const {
      return std::hash<const void*>()(key.from) * 31 + std::hash<const void*>()(key.to);
    }
  };
  MoveCost price(const Sharding& from, const Sharding& to) const;

  cost::Machine machine_;
  std::unordered_map<Key, MoveCost, Hash> known_;
};

}  // namespace tessera::partition
