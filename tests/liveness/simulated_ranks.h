#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <vector>

#include "tessera/base/iota_vector.h"
#include "tessera/liveness/peer_diagnostics.h"
#include "tests/support/memory_store.h"
#include "tests/support/simulation.h"

/// Ranks of a simulated world over a store in memory, for tests of the protocols on it.
namespace tessera::comm {

using std::chrono::milliseconds;
using std::chrono::seconds;
using testing::MemoryStore;
using testing::Simulation;
using testing::StoreHost;
using StorePtr = c10::intrusive_ptr<c10d::Store>;

class SimulatedRanks {
 public:
  SimulatedRanks(test::Rng& rng, int size, StoreHost::Faults faults = {})
      : simulation(rng),
        host(std::make_shared<StoreHost>(simulation, faults)),
        ranks(iota_vector<int>(size)) {}

  /// Connections, as a process world makes them.
  StorePtr store() const { return c10::make_intrusive<MemoryStore>(host); }
  StorePtr board() const {
    return c10::make_intrusive<c10d::PrefixStore>(PeerDiagnostics::kPrefix, store());
  }

  int size() const { return static_cast<int>(ranks.size()); }
  milliseconds random_time(milliseconds most) {
    return milliseconds(simulation.rng().between(0, most.count()));
  }

  /// Process `rank` stops, as if killed, when it has made `requests` requests from now on.
  void stop_after(int rank, int requests) {
    auto left = std::make_shared<int>(requests);
    host->before = [this, rank, left, others = host->before](std::string_view request) {
      if (others) others(request);
      if (simulation.process() != rank || simulation.is_stopped(rank)) return;
      if (--*left > 0) return;
      simulation.stop(rank);
    };
  }

  Simulation simulation;
  std::shared_ptr<StoreHost> host;
  std::vector<int> ranks;
};

}  // namespace tessera::comm
