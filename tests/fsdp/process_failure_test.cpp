// A process that is killed in the middle of a step: the others hear of it and end.
#include <gtest/gtest.h>

#include <chrono>
#include <cstdlib>
#include <thread>

#include "tessera/comm/processes.h"
#include "tests/fsdp/training.h"
#include "tests/support/processes.h"

namespace tessera::test {
namespace {

using testing::error_of;
using testing::mark;
using testing::ProcessResult;
using testing::run_processes;
using testing::Scenario;

/// The victim answers no more; the test kills it.
void stop_here() {
  mark("kill me");
  std::this_thread::sleep_for(std::chrono::minutes(5));
}

/// Learns a step, then takes another one that the victim leaves between its second and third layer,
/// in forward or in backward. At both places the next group's gather is under way.
void train_with_victim(bool in_backward) {
  const DeviceMesh mesh = init_device_mesh("dp=3");
  const int rank = mesh.local_rank("dp");
  const bool victim = std::getenv("VICTIM") == std::to_string(rank);
  const Batch mine = make_batch(6, 64, 64).part(rank, 3);
  auto net = make_mlp({64, 70, 80, 90, 64});
  shard_layers(net, mesh, kUnmerged);
  auto optimizer = adamw()(net->parameters());
  train(forward_of(net), *optimizer, mine, 2);
  const std::string error = error_of([&] {
    const auto layers = layers_of(net);
    at::Tensor hidden = at::tanh(layers[1]->forward(at::tanh(layers[0]->forward(mine.x))));
    if (victim && !in_backward) stop_here();
    if (victim) {
      hidden.register_hook([](const at::Tensor& gradient) {
        stop_here();
        return gradient;
      });
    }
    const at::Tensor out = layers[3]->forward(at::tanh(layers[2]->forward(hidden)));
    mark("through forward");
    at::mse_loss(out, mine.y).backward();
    mark("through backward");
  });
  mark("error: " + error);
  EXPECT_NE(error_of([&] { net->forward(mine.x); }), "");  // it says so again, and does not hang
}

const Scenario kInForward("killed in forward", [] { train_with_victim(false); });
const Scenario kInBackward("killed in backward", [] { train_with_victim(true); });

void the_others_name_it(const Scenario& scenario, int victim, bool in_backward) {
  const auto results = run_processes(
      scenario,
      {.size = 3,
       .kill_rank = victim,
       .environment = {{"TESSERA_TIMEOUT_S", "120"}, {"VICTIM", std::to_string(victim)}}});
  for (const ProcessResult& result : results) {
    if (result.rank == victim) {
      EXPECT_EQ(result.signal, SIGKILL) << result.to_text();
      continue;
    }
    EXPECT_TRUE(result.ok()) << result.to_text();  // run_processes waits for half of the timeout
    EXPECT_EQ(result.says("through forward"), in_backward) << result.to_text();
    EXPECT_FALSE(result.says("through backward")) << result.to_text();
    EXPECT_TRUE(result.says("error: PeerError: rank " + std::to_string(result.rank) + ": "))
        << result.to_text();
    EXPECT_TRUE(result.says("(ranks 0,1,2) failed")) << result.to_text();
  }
}

TEST(FullyShardProcessFailure, ARankKilledInForwardEndsTheStepOfTheOthers) {
  the_others_name_it(kInForward, 1, /*in_backward=*/false);
}

TEST(FullyShardProcessFailure, ARankKilledInBackwardEndsTheStepOfTheOthers) {
  the_others_name_it(kInBackward, 1, /*in_backward=*/true);
}

TEST(FullyShardProcessFailure, KillingTheRankThatHostsTheStoreIsNoWorse) {
  the_others_name_it(kInBackward, 0, /*in_backward=*/true);
}

}  // namespace
}  // namespace tessera::test
