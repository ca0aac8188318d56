#pragma once

#include "tessera/cost/machine.h"
#include "tests/support_pure/property.h"

namespace tessera::test {

/// Machines on which different plans are the cheapest: accelerators, CPU processes, hosts of a few
/// ranks, links where only latency or only bandwidth counts, dear local copies.
inline cost::Machine random_machine(Rng& rng) {
  cost::Machine machine = rng.chance(50) ? cost::Machine() : cost::Machine::cpu_processes();
  machine.ranks_per_host = rng.int_between(1, 8);
  if (rng.chance(30)) machine.within_host = {1e-9, 1e-9, 1e6 * rng.int_between(1, 100)};
  if (rng.chance(30)) machine.across_hosts = {1e-9, 1e-9, 1e5 * rng.int_between(1, 100)};
  if (rng.chance(10)) machine.within_host.hop_s = 1e-3;
  if (rng.chance(20)) machine.copy_start_s = 1e-4;
  if (rng.chance(20)) machine.copy_bytes_per_s = 1e6;
  return machine;
}

}  // namespace tessera::test
