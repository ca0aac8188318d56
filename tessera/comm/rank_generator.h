#pragma once

#include <ATen/core/Generator.h>
#include <c10/core/Device.h>

#include <cstdint>
#include <map>
#include <mutex>

/// Every rank that is a thread has its own default generators. A random op called without a
/// generator in a rank's thread (`torch::randn`, `x.normal_()`, `dropout`, ...) draws from that
/// rank's, so ranks that draw at the same time neither disturb each other nor depend on who came
/// first: each gets the sequence that a process of its own would get.
///
///   at::manual_seed(7); a = at::randn(3);
///   run_ranks(4, [&](int) { at::randn(3); });    // equal to `a` on each of the four
///
/// How: while a rank runs, a dispatch key that nothing else uses is on in its thread; for each op
/// that takes a `Generator?` there is a kernel under that key which fills in the missing one. Other
/// threads never reach it, so they pay nothing.
///
/// What this does not see: `at::manual_seed` inside a rank seeds the process's generator, not the
/// rank's (use manual_seed below); CUDA kernels that take no generator argument (native_dropout,
/// fused attention with dropout) draw from the process's.
namespace tessera::comm {

/// Seeds the calling rank's generators; outside thread ranks the process's, as at::manual_seed
/// does.
void manual_seed(uint64_t seed);

/// What a random op on `device` uses here when it is given none.
at::Generator default_generator(c10::Device device = c10::Device(c10::kCPU));

/// The default generators of one rank: for each device one, made when first asked for.
class RankGenerators {
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

/// The seed that ranks start from: the one that the process's default generator was given.
uint64_t process_seed();

/// While it lives, the calling thread draws from `generators`. Nests; ends on the same thread.
class UseGenerators {
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
