#pragma once

#include <ATen/core/Generator.h>
#include <c10/core/Device.h>

#include <cstdint>
#include <map>
#include <mutex>

#include "tessera/base/api.h"

/// Every thread rank has its own default generators. A random op called without a generator on a
/// rank's thread (`torch::randn`, `x.normal_()`, `dropout`, ...) uses that rank's, so concurrent
/// ranks neither interfere nor depend on timing: each gets the sequence that a separate process
/// would get.
///
///   at::manual_seed(7); a = at::randn(3);
///   run_ranks(4, [&](int) { at::randn(3); });    // equal to `a` on each of the four
///
/// Implementation: while a rank runs, an otherwise unused dispatch key is enabled on its thread;
/// each op that takes a `Generator?` has a kernel for that key which fills in a missing one. Random
/// ops without such an argument (native_dropout, attention with dropout), which on CUDA draw from
/// the process's generator, run while that has the rank's state. Other threads never reach these
/// kernels and pay nothing.
///
/// Not covered: `at::manual_seed` inside a rank seeds the process's generator, not the rank's (use
/// manual_seed below).
namespace tessera::comm {

/// Seeds the calling rank's generators; outside thread ranks the process's, as at::manual_seed
/// does.
TESSERA_API void manual_seed(uint64_t seed);

/// The generator that a random op on `device` uses here if it is given none.
TESSERA_API at::Generator default_generator(c10::Device device = c10::Device(c10::kCPU));

/// The default generators of one rank, one per device, created on first use.
class TESSERA_API RankGenerators {
 public:
  explicit RankGenerators(uint64_t seed) : seed_(seed) {}
  RankGenerators(const RankGenerators&) = delete;
  RankGenerators& operator=(const RankGenerators&) = delete;

  at::Generator get(c10::Device device);
  void manual_seed(uint64_t seed);

 private:
  std::mutex mutex_;
  uint64_t seed_;
  std::map<c10::Device, at::Generator, bool (*)(c10::Device, c10::Device)> made_{
      [](c10::Device a, c10::Device b) {
        return a.type() != b.type() ? a.type() < b.type() : a.index() < b.index();
      }};
};

/// The initial seed of the ranks: the seed of the process's default generator.
TESSERA_API uint64_t process_seed();

/// While it is alive, the calling thread draws from `generators`. Nests; must end on the same
/// thread.
class TESSERA_API UseGenerators {
 public:
  explicit UseGenerators(RankGenerators& generators);
  ~UseGenerators();
  UseGenerators(const UseGenerators&) = delete;
  UseGenerators& operator=(const UseGenerators&) = delete;

 private:
  RankGenerators* previous_;
  bool key_was_on_;
};

}  // namespace tessera::comm
