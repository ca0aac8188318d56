// Ranks that hold the same elements draw the same numbers for them, or an error says which do not.
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Functions.h>
#include <gtest/gtest.h>

#include "tessera/base/errors.h"
#include "tessera/comm/rank_generator.h"
#include "tessera/comm/threads.h"
#include "tessera/comm/world.h"
#include "tessera/dtensor/dtensor.h"
#include "tessera/observe/recorder.h"
#include "tests/support/processes.h"
#include "tests/support/ranks.h"

namespace tessera {
namespace same_generator_test {

using comm::init_device_mesh;
using comm::manual_seed;
using test::run_ranks;
using testing::error_of;

at::Tensor ones(const DeviceMesh& mesh, const char* placements) {
  return distribute_tensor(at::ones({8, 6}, at::kDouble), mesh, parse_placements(placements));
}

void expect_names(const std::string& error, std::initializer_list<const char*> texts) {
  for (const char* text : texts) EXPECT_NE(error.find(text), std::string::npos) << error;
}

TEST(SameGenerator, ReplicatedDropoutSaysWhichSeedsDiffer) {
  run_ranks(2, [](int rank) {
    const DeviceMesh mesh = init_device_mesh("tp=2");
    manual_seed(42 + static_cast<uint64_t>(rank));
    const at::Tensor x = ones(mesh, "R");
    expect_names(error_of([&] { at::dropout(x, 0.5, true); }),
                 {"InvalidArgument", "tp=2", "rank 0 has the seed 42", "rank 1 has 43"});
    expect_names(error_of([&] { at::rand_like(x); }), {"rank 1 has 43"});
    expect_names(error_of([&] { x.clone().normal_(); }), {"rank 1 has 43"});
    expect_names(error_of([&] { at::multinomial(x, 2); }), {"rank 1 has 43"});
    manual_seed(42);
    const at::Tensor out = at::dropout(x, 0.5, true);
    EXPECT_TRUE(at::equal(to_local(out), full_tensor(redistribute(out, {Shard(0)}))));
    manual_seed(7 + static_cast<uint64_t>(rank));
    expect_names(error_of([&] { at::dropout(x, 0.5, true); }), {"rank 0 has the seed 7"});
  });
}

TEST(SameGenerator, ASeedThatOneRankHadBeforeIsComparedAgain) {
  run_ranks(2, [](int rank) {
    const DeviceMesh mesh = init_device_mesh("tp=2");
    const at::Tensor x = ones(mesh, "R");
    manual_seed(42);
    at::dropout(x, 0.5, true);
    manual_seed(42 + static_cast<uint64_t>(rank));
    expect_names(error_of([&] { at::dropout(x, 0.5, true); }), {"rank 1 has 43"});
    at::dropout(ones(mesh, "S0"), 0.5, true);
    expect_names(error_of([&] { at::dropout(x, 0.5, true); }), {"rank 1 has 43"});
  });
}

TEST(SameGenerator, AShardedAxisMayHaveSeedsOfItsOwn) {
  run_ranks(4, [](int rank) {
    const DeviceMesh mesh = init_device_mesh("dp=2,tp=2");
    manual_seed(static_cast<uint64_t>(rank / 2));  // by dp
    EXPECT_EQ(error_of([&] { at::dropout(ones(mesh, "S0,R"), 0.5, true); }), "");
    EXPECT_EQ(error_of([&] { at::dropout(ones(mesh, "S0,S1"), 0.5, true); }), "");
    expect_names(error_of([&] { at::dropout(ones(mesh, "R,S0"), 0.5, true); }), {"dp=2", "seed"});
    expect_names(error_of([&] { at::dropout(ones(mesh, "R,R"), 0.5, true); }), {"dp=2", "seed"});
  });
}

TEST(SameGenerator, StatesThatDifferAreFoundToo) {
  run_ranks(2, [](int rank) {
    const DeviceMesh mesh = init_device_mesh("tp=2");
    manual_seed(5);
    if (rank == 1) at::rand({3});
    expect_names(error_of([&] { at::dropout(ones(mesh, "R"), 0.5, true); }),
                 {"have the seed 5 and have drawn differently since"});
  });
}

TEST(SameGenerator, GeneratorsOfTheProgramAreChecked) {
  run_ranks(2, [](int rank) {
    const DeviceMesh mesh = init_device_mesh("tp=2");
    manual_seed(static_cast<uint64_t>(rank));
    auto same = at::make_generator<at::CPUGeneratorImpl>(3);
    EXPECT_EQ(error_of([&] { ones(mesh, "R").normal_(0, 1, same); }), "");
    auto own = at::make_generator<at::CPUGeneratorImpl>(10 + static_cast<uint64_t>(rank));
    expect_names(error_of([&] { ones(mesh, "R").normal_(0, 1, own); }), {"seed 10", "has 11"});
    EXPECT_EQ(error_of([&] { ones(mesh, "S0").normal_(0, 1, own); }), "");
  });
}

/// Each process starts with a seed that libtorch made up.
const testing::Scenario kNeverSeeded("never seeded", [] {
  const DeviceMesh mesh = init_device_mesh("dp=2,tp=2");
  const at::Tensor x = ones(mesh, "S0,R");
  for (int i = 0; i < 3; ++i) {
    const at::Tensor out = at::dropout(x, 0.5, true);
    const auto along = redistribute(out, {Shard(0), Shard(1)});  // of each a half
    EXPECT_TRUE(at::equal(to_local(out), to_local(redistribute(along, {Shard(0), Replicate()}))));
  }
  const at::Tensor all = ones(mesh, "R,R").normal_();
  EXPECT_TRUE(at::equal(to_local(all), full_tensor(redistribute(all, {Shard(0), Shard(1)}))));
});

TEST(SameGenerator, RanksThatWereNeverSeededAgree) {
  EXPECT_EQ(testing::failures(testing::run_processes(kNeverSeeded, {.size = 4})), "");
}

TEST(SameGenerator, IsAskedForOnceASeed) {
  run_ranks(2, [](int) {
    const DeviceMesh mesh = init_device_mesh("tp=2");
    const at::Tensor x = ones(mesh, "R");
    comm::Recorder recorder(*comm::current_world());
    const auto calls = [&] {
      const size_t n = recorder.events().size();
      recorder.clear();
      return n;
    };
    manual_seed(11);
    for (int i = 0; i < 5; ++i) at::dropout(x, 0.5, true);
    EXPECT_EQ(calls(), 1U);
    manual_seed(12);
    for (int i = 0; i < 5; ++i) at::dropout(x, 0.5, true);
    EXPECT_EQ(calls(), 1U);
    for (int i = 0; i < 5; ++i) at::dropout(redistribute(x, {Shard(0)}), 0.5, true);
    EXPECT_EQ(calls(), 0U);
  });
}

}  // namespace same_generator_test
}  // namespace tessera
