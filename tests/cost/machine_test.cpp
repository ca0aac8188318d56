#include "tessera/cost/machine.h"

#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "tests/support_pure/expect_error.h"
#include "tests/support_pure/random_shardings.h"

namespace tessera::cost {
namespace machine_test {

using Seconds = std::function<double(const Link&, int64_t ranks, int64_t bytes)>;

const std::vector<std::pair<std::string, Seconds>> kCollectives = {
    {"all_gather", all_gather_seconds},
    {"all_reduce", all_reduce_seconds},
    {"reduce_scatter", reduce_scatter_seconds},
    {"all_to_all", all_to_all_seconds},
};

/// Axis by axis: 'w' if it stays within hosts, 'a' if it crosses them.
std::string links_text(const std::string& mesh, int ranks_per_host) {
  Machine machine;
  machine.ranks_per_host = ranks_per_host;
  std::string out;
  for (const Link& link : links_of(DeviceMesh::parse(mesh), machine)) {
    out += link == machine.within_host ? 'w' : 'a';
  }
  return out;
}

TEST(Cost, OfOneRankIsNothing) {
  for (const auto& [name, seconds] : kCollectives) {
    EXPECT_EQ(seconds(Machine().within_host, 1, 1 << 20), 0) << name;
  }
}

TEST(Cost, GrowsWithBytesRanksAndSlowerLinks) {
  const Machine machine;
  for (const auto& [name, seconds] : kCollectives) {
    SCOPED_TRACE(name);
    double last = 0;
    for (int64_t bytes = 0; bytes < int64_t{1} << 40; bytes = 4 * bytes + 1) {
      const double now = seconds(machine.within_host, 8, bytes);
      EXPECT_GT(now, last);
      EXPECT_GT(seconds(machine.across_hosts, 8, bytes), now);
      last = now;
    }
    last = 0;
    for (int64_t ranks = 2; ranks < 5000; ranks += ranks / 2) {
      const double now = seconds(machine.within_host, ranks, 1 << 20);
      EXPECT_GT(now, last);
      last = now;
    }
  }
}

TEST(Cost, OfCollectivesInNumbers) {
  const Link link{100, 10, 2};  // seconds, seconds, bytes per second
  EXPECT_DOUBLE_EQ(all_gather_seconds(link, 8, 80), 100 + 3 * 10 + 70 / 2.);
  EXPECT_DOUBLE_EQ(reduce_scatter_seconds(link, 8, 80), 100 + 3 * 10 + 70 / 2.);
  EXPECT_DOUBLE_EQ(all_reduce_seconds(link, 8, 80), 100 + 2 * (3 * 10 + 70 / 2.));
  EXPECT_DOUBLE_EQ(all_to_all_seconds(link, 8, 80), 100 + 7 * 10 + 70 / 2.);
  EXPECT_DOUBLE_EQ(all_gather_seconds(link, 5, 0), 100 + 3 * 10);  // ceil(log2 5) hops
  Machine machine;
  machine.copy_start_s = 3;
  machine.copy_bytes_per_s = 10;
  EXPECT_DOUBLE_EQ(copy_seconds(machine, 50), 8);
}

/// An all_reduce is a reduce_scatter and an all_gather in one call, and no costlier than the two.
TEST(Cost, OfAnAllReduceIsBelowItsTwoHalves) {
  const Link link = Machine().across_hosts;
  for (int64_t bytes : {0, 1000, 1 << 20}) {
    const double halves =
        reduce_scatter_seconds(link, 16, bytes) + all_gather_seconds(link, 16, bytes);
    EXPECT_LE(all_reduce_seconds(link, 16, bytes), halves);
  }
}

TEST(Cost, OfSeveralLinksIsTheSlowestOfEachPart) {
  const std::vector<Link> links = {{1, 20, 300}, {2, 10, 100}};
  EXPECT_EQ(slowest(links), (Link{2, 20, 100}));
  EXPECT_EQ(slowest({}), Link{});
}

TEST(Links, StayWithinAHostIfEveryGroupDoes) {
  EXPECT_EQ(links_text("dp=2,tp=8", 8), "aw");
  EXPECT_EQ(links_text("dp=2,tp=4", 8), "ww");
  EXPECT_EQ(links_text("tp=8,dp=2", 8), "aw");
  EXPECT_EQ(links_text("dp=2,tp=8", 4), "aa");
  EXPECT_EQ(links_text("a=8,b=8,c=16", 8), "aaa");
  EXPECT_EQ(links_text("a=8,b=8,c=16", 16), "aaw");
  EXPECT_EQ(links_text("a=8,b=8,c=16", 1024), "www");
  EXPECT_EQ(links_text("a=3,b=2", 4), "aw");  // 0 1 | 2 3 | 4 5 on hosts of 4
  EXPECT_EQ(links_text("a=2,b=3", 4), "aa");  // 3 4 5 is on two hosts
  EXPECT_EQ(links_text("one=1,tp=2", 1), "wa");
}

TEST(Links, FollowTheRanksOfTheMesh) {
  EXPECT_EQ(links_text("tp=4@2-5", 4), "a");
  EXPECT_EQ(links_text("tp=4@4-7", 4), "w");
  EXPECT_EQ(links_text("dp=2,tp=2@0,4,1,5", 4), "wa");
  EXPECT_EQ(links_text("dp=2,tp=2@3,0,6,5", 4), "aw");
  EXPECT_EQ(links_text("tp=3@8,11,9", 4), "w");
}

TEST(Links, AgreeWithTheGroupsOfTheMesh) {
  test::for_each_seed(500, [](test::Rng& rng) {
    const auto mesh = test::with_random_ranks(rng, test::random_mesh(rng));
    Machine machine;
    machine.ranks_per_host = rng.int_between(1, 9);
    const auto links = links_of(mesh, machine);
    for (int axis = 0; axis < mesh.ndim(); ++axis) {
      bool within = true;
      for (const auto& group : mesh.groups(mesh.axis_name(axis))) {
        for (int rank : group) {
          within &= rank / machine.ranks_per_host == group[0] / machine.ranks_per_host;
        }
      }
      EXPECT_EQ(links[static_cast<size_t>(axis)],
                within ? machine.within_host : machine.across_hosts)
          << mesh.to_text() << " on hosts of " << machine.ranks_per_host;
    }
  });
}

TEST(Links, NeedARankToAHost) {
  Machine machine;
  machine.ranks_per_host = 0;
  test::expect_error<InvalidArgument>([&] { links_of(DeviceMesh::parse("tp=2"), machine); },
                                      {"0 ranks per host"});
}

TEST(DefaultMachine, IsSetForADeviceAndCountsItsVersions) {
  const Machine cpu = default_machine("cpu");
  EXPECT_EQ(cpu, Machine::cpu_processes());
  EXPECT_EQ(default_machine("a device never heard of"), Machine());

  const uint64_t before = default_machine_version();
  Machine mine;
  mine.ranks_per_host = 3;
  set_default_machine("a test device", mine);
  EXPECT_EQ(default_machine("a test device"), mine);
  EXPECT_EQ(default_machine("cpu"), cpu);
  EXPECT_EQ(default_machine_version(), before + 1);
}

}  // namespace machine_test
}  // namespace tessera::cost
