#pragma once

#include <algorithm>
#include <string>
#include <vector>

#include "tessera/base/text.h"
#include "tessera/cost/machine.h"
#include "tests/support_pure/random_shardings.h"

/// Random redistributions and machines for tests of the planner.
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

struct RandomProblem {
  Sharding from;
  Sharding to;
  cost::Machine machine;

  std::string to_text() const { return join_text(from, "  ->  ", to); }
};

/// Anything that can occur, most of it small: scalars, axes of one rank, empty dims.
inline RandomProblem random_problem(Rng& rng) {
  const auto mesh = random_mesh(rng, 4, 24);
  const auto from = random_sharding(rng, mesh, random_shape(rng, 5, 150));
  return {from, random_sharding_like(rng, from), random_machine(rng)};
}

struct DenseOptions {
  int axes = 3;
  int dims = 3;
  std::vector<int> axis_sizes = {2, 2, 3, 4};
  int64_t max_size = 256;  // of a dim
};

/// So many axes of several ranks, so many dims: where there is much to choose.
inline RandomProblem dense_problem(Rng& rng, const DenseOptions& options) {
  std::vector<MeshAxis> axes;
  for (int i = 0; i < options.axes; ++i) {
    axes.push_back({std::string(1, static_cast<char>('a' + i)), rng.one_of(options.axis_sizes)});
  }
  std::vector<int64_t> shape;
  for (int i = 0; i < options.dims; ++i) {
    // Even sizes, on which many ways cost the same, and sizes that no axis divides.
    const int64_t size = rng.chance(50) ? int64_t{1} << rng.between(1, 8) : rng.between(1, 70);
    shape.push_back(std::min(size, options.max_size));
  }
  const RandomOptions placements{
      .partial = rng.chance(70), .strided = rng.chance(30), .ragged = rng.chance(20)};
  const auto from = random_sharding(rng, DeviceMesh(axes), shape, placements);
  return {from, random_sharding_like(rng, from, placements), random_machine(rng)};
}

}  // namespace tessera::test
