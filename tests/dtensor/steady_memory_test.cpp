// Long runs do not grow: neither the process, nor the decisions, shardings and plans that it keeps.
// TESSERA_STEADY_OPS sets the number of ops; the default takes seconds.
#include <ATen/Functions.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <fstream>

#include "tessera/comm/threads.h"
#include "tessera/dtensor/dtensor.h"
#include "tests/support/kept_entries.h"
#include "tests/support/training.h"

namespace tessera {
namespace steady_memory_test {

using comm::init_device_mesh;
using comm::run_ranks;
using test::KeptEntries;
using test::test_numbers;

int64_t wanted_ops() {
  const char* asked = std::getenv("TESSERA_STEADY_OPS");
  return asked != nullptr ? std::atoll(asked) : 20'000;
}

int64_t resident_bytes() {
  std::ifstream file("/proc/self/statm");
  int64_t size = 0;
  int64_t resident = 0;
  file >> size >> resident;
  return resident * sysconf(_SC_PAGESIZE);
}

TEST(SteadyMemory, TrainingStepsDoNotGrow) {
  constexpr int64_t kOpsOfAStep = 40;  // forward, backward and update of two layers
  run_ranks(2, [](int rank) {
    const DeviceMesh mesh = init_device_mesh("tp=2");
    const at::Tensor x = distribute_tensor(test_numbers({8, 16}, 1), mesh, {Replicate()});
    at::Tensor w = distribute_tensor(test_numbers({32, 16}, 2), mesh, {Shard(0)}).requires_grad_();
    at::Tensor v = distribute_tensor(test_numbers({4, 32}, 3), mesh, {Shard(1)}).requires_grad_();
    const auto step = [&] {
      const at::Tensor loss = at::linear(at::relu(at::linear(x, w)), v).pow(2).mean();
      loss.backward();
      const at::NoGradGuard no_grad;
      for (at::Tensor* p : {&w, &v}) {
        p->sub_(p->grad(), 1e-3);
        p->mutable_grad().reset();
      }
      return loss.item<double>();
    };
    // A rank that ends takes its decisions with it, so all are there when they are counted.
    const auto meet = [&] {
      EXPECT_EQ(from_local(at::ones({1}), mesh, {Partial()}).item<float>(), 2.0F);
    };
    for (int i = 0; i < 200; ++i) step();
    meet();
    meet();
    const KeptEntries before;
    const int64_t resident = resident_bytes();
    double first = step();
    for (int64_t ops = 0; ops < wanted_ops(); ops += kOpsOfAStep) first = std::min(first, step());
    EXPECT_TRUE(std::isfinite(first));
    meet();
    if (rank == 0) {
      EXPECT_EQ(KeptEntries(), before);
      // The allocator may keep a little more than it did; an op that leaked 100 bytes would show.
      EXPECT_LT(resident_bytes() - resident, 2 << 20);
    }
    meet();
  });
}

TEST(SteadyMemory, EverNewShapesAreForgotten) {
  const int64_t shapes = wanted_ops() / 4;
  run_ranks(2, [&](int rank) {
    const DeviceMesh mesh = init_device_mesh("tp=2");
    uint64_t most = 0;
    for (int64_t i = 0; i < shapes; ++i) {
      const std::vector<int64_t> shape = {1 + i % 64, 1 + i / 64 % 64, 1 + i / 4096};
      const at::Tensor part = at::ones({1, 1, 1}, at::kFloat).expand(shape);
      const at::Tensor x = from_local(part, mesh, {Replicate()}, {.shape = shape});
      EXPECT_EQ((x + x).sizes(), at::IntArrayRef(shape));
      if (rank == 0) most = std::max(most, cache_stats().decisions);
    }
    EXPECT_LE(most, 3 * 2 * 4096U);  // three ops, two ranks, and a table's bound for each
  });
}

TEST(SteadyMemory, RanksThatEndLeaveNothingBehind) {
  const auto world = [] {
    run_ranks(2, [](int) {
      const DeviceMesh mesh = init_device_mesh("tp=2");
      const at::Tensor x = distribute_tensor(test_numbers({8, 6}, 1), mesh, {Shard(0)});
      EXPECT_EQ(full_tensor(at::mm(x.t(), x)).size(0), 6);
    });
  };
  world();
  const KeptEntries before;
  for (int i = 0; i < 20; ++i) world();
  EXPECT_EQ(KeptEntries(), before);
}

}  // namespace steady_memory_test
}  // namespace tessera
