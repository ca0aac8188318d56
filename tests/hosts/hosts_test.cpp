// Training over several hosts: which interface they use, and what happens when a host disappears,
// a partition heals, or a link is slow.
#include "tests/support/hosts.h"

#include <gtest/gtest.h>

#include <chrono>
#include <functional>
#include <thread>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include "tessera/comm/processes.h"
#include "tessera/transport/network.h"
#include "tests/comm/process_links.h"
#include "tests/support/processes.h"

namespace tessera::comm {
namespace hosts_test {

using std::chrono::seconds;
using StorePtr = c10::intrusive_ptr<c10d::Store>;
using testing::error_of;
using testing::failures;
using testing::Hosts;
using testing::mark;
using testing::ProcessResult;
using testing::run_processes;
using testing::RunOptions;
using testing::Scenario;

int number_of(const char* variable, int otherwise) {
  const char* given = std::getenv(variable);
  return given != nullptr ? std::atoi(given) : otherwise;
}

/// What rank `rank` wants the weights to be in step `step`.
at::Tensor target(int rank, int step, int64_t length) {
  return at::arange(length, at::kDouble) * (rank + 1) + step;
}

/// Gradient descent towards the mean of the ranks' targets, gradients summed over the world. Every
/// rank then knows what the weights must be.
void train(RankWorld& world) {
  const int64_t length = number_of("LENGTH", 1000);
  at::Tensor weights = at::zeros({length}, at::kDouble);
  at::Tensor expected = weights.clone();
  for (int step = 0; step < number_of("STEPS", 10); ++step) {
    mark("step " + std::to_string(step));
    Tensors gradient = {weights - target(world.rank(), step, length)};
    c10d::AllreduceOptions options;
    options.asyncOp = false;
    links_of(world).allreduce(gradient, options)->wait();
    weights -= 0.1 * gradient[0];
    at::Tensor sum = at::zeros({length}, at::kDouble);
    for (int rank = 0; rank < world.size(); ++rank) sum += expected - target(rank, step, length);
    expected -= 0.1 * sum;
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
  }
  EXPECT_TRUE(at::allclose(weights, expected));
  mark("trained");
}

const Scenario kTrain("train", [] {
  const auto world = process_world();
  mark("error: " + error_of([&] { train(*world); }));
});

/// Over a store that the program made.
void train_over(const std::function<StorePtr(StorePtr)>& wrap) {
  c10d::TCPStoreOptions tcp;
  tcp.port = static_cast<uint16_t>(number_of("MASTER_PORT", 0));
  tcp.isServer = number_of("RANK", 0) == 0;
  const auto world = make_process_world(
      {.rank = number_of("RANK", 0),
       .size = number_of("WORLD_SIZE", 1),
       .store = wrap(c10::make_intrusive<c10d::TCPStore>(std::getenv("MASTER_ADDR"), tcp)),
       .timeout = seconds(20)});
  train(*world);
}

const Scenario kGivenStore("given store", [] { train_over([](StorePtr store) { return store; }); });

/// The store of torch.distributed's default group has two prefixes.
const Scenario kAdoptedStore("adopted store", [] {
  train_over([](StorePtr store) {
    auto group = c10::make_intrusive<c10d::PrefixStore>("default_pg", std::move(store));
    return c10::make_intrusive<c10d::PrefixStore>("0", std::move(group));
  });
});

/// `ranks` of them on each host, in order.
RunOptions on(const Hosts& hosts, int count, int ranks = 1) {
  RunOptions options;
  options.size = count * ranks;
  options.deadline = seconds(90);
  options.environment["TESSERA_TIMEOUT_S"] = "60";
  options.environment_of = [&hosts, ranks](int rank) { return hosts.at(rank / ranks); };
  return options;
}

class HostsTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (const auto why = Hosts::not_allowed(); !why.empty()) GTEST_SKIP() << why;
  }
};

void expect_all_trained(const std::vector<ProcessResult>& results) {
  EXPECT_EQ(failures(results), "");
  for (const ProcessResult& result : results) {
    EXPECT_TRUE(result.says("trained")) << result.to_text();
  }
}

TEST_F(HostsTest, TwoHostsOfTwoRanksTrain) {
  const Hosts hosts(2);
  expect_all_trained(run_processes(kTrain, on(hosts, 2, 2)));
}

/// The network towards the store is the job's, whatever other interfaces there are.
TEST_F(HostsTest, TheInterfaceIsTheOneTowardsTheStore) {
  const Hosts hosts(3, {.decoy = true});
  expect_all_trained(run_processes(kTrain, on(hosts, 3)));
}

TEST_F(HostsTest, AGivenStoreSaysWhichInterfaceToo) {
  const Hosts hosts(2, {.decoy = true});
  expect_all_trained(run_processes(kGivenStore, on(hosts, 2)));
}

TEST_F(HostsTest, AWorldOverTheStoreOfTorchDistributedUsesTheInterfaceOfTheJob) {
  const Hosts hosts(2, {.decoy = true});
  expect_all_trained(run_processes(kAdoptedStore, on(hosts, 2)));
}

/// Unplugs `lost` in step 3, for good: no link is closed, nothing answers.
std::vector<ProcessResult> run_with_lost_host(int lost) {
  Hosts hosts(3);
  RunOptions options = on(hosts, 3);
  options.environment["TESSERA_TIMEOUT_S"] = "10";
  options.on_mark = [&](int rank, std::string_view text) {
    if (rank == lost && text == "step 3") hosts.unplug(lost);
  };
  return run_processes(kTrain, options);
}

TEST_F(HostsTest, AHostThatDisappearsIsNamed) {
  for (const ProcessResult& result : run_with_lost_host(2)) {
    EXPECT_FALSE(result.timed_out) << result.to_text();
    EXPECT_LT(result.elapsed, seconds(80)) << result.to_text();
    EXPECT_TRUE(result.says("error: PeerError")) << result.to_text();
    if (result.rank == 2) {
      EXPECT_TRUE(result.says("rank 0 (10.98.0.1)")) << result.to_text();
    } else {
      EXPECT_TRUE(result.says("no sign of life from rank 2 (host-c)")) << result.to_text();
    }
  }
}

TEST_F(HostsTest, TheHostOfTheStoreIsNamedWhenItDisappears) {
  for (const ProcessResult& result : run_with_lost_host(0)) {
    EXPECT_FALSE(result.timed_out) << result.to_text();
    EXPECT_LT(result.elapsed, seconds(80)) << result.to_text();
    EXPECT_TRUE(result.says("error: PeerError")) << result.to_text();
    if (result.rank == 0) continue;
    EXPECT_TRUE(result.says("rank 0 (10.98.0.1)")) << result.to_text();
  }
}

/// Cuts host `cut` off by `down` in step 3, and joins it again by `up` three seconds later.
void expect_trained_through(int cut, void (Hosts::*down)(int), void (Hosts::*up)(int)) {
  Hosts hosts(3);
  std::thread heals;
  RunOptions options = on(hosts, 3);
  options.on_mark = [&](int rank, std::string_view text) {
    if (rank != cut || text != "step 3") return;
    (hosts.*down)(cut);
    heals = std::thread([&] {
      std::this_thread::sleep_for(seconds(3));
      (hosts.*up)(cut);
    });
  };
  expect_all_trained(run_processes(kTrain, options));
  heals.join();
}

TEST_F(HostsTest, TrainingGoesOnAfterAPartition) {
  expect_trained_through(2, &Hosts::unplug, &Hosts::plug);
}

TEST_F(HostsTest, TrainingGoesOnAfterTheHostOfTheStoreWasCutOff) {
  expect_trained_through(0, &Hosts::unplug, &Hosts::plug);
}

TEST_F(HostsTest, TrainingGoesOnAfterAnInterfaceWasTakenDown) {
  expect_trained_through(1, &Hosts::take_down, &Hosts::take_up);
}

TEST_F(HostsTest, TrainingGoesOnOverASlowLink) {
  Hosts hosts(2);
  if (!hosts.slow_down(1, "8mbit")) GTEST_SKIP() << "this kernel has no tbf";
  RunOptions options = on(hosts, 2);
  options.environment["LENGTH"] = "100000";  // 0.8 MB: most of a second
  options.environment["STEPS"] = "4";
  expect_all_trained(run_processes(kTrain, options));
}

TEST_F(HostsTest, TrainingGoesOnOverALongLink) {
  Hosts hosts(2);
  if (!hosts.delay(1, "50ms")) GTEST_SKIP() << "this kernel has no netem";
  expect_all_trained(run_processes(kTrain, on(hosts, 2)));
}

}  // namespace hosts_test
}  // namespace tessera::comm
