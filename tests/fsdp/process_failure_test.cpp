// A process that is killed or stopped in the middle of a step: the others hear of it, say which it
// was, and end.
#include <gtest/gtest.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <thread>

#include "tessera/comm/processes.h"
#include "tessera/module/clip_grad.h"
#include "tests/fsdp/training.h"
#include "tests/support/processes.h"

namespace tessera::test {
namespace process_failure_test {

using testing::error_of;
using testing::mark;
using testing::ProcessResult;
using testing::run_processes;
using testing::Scenario;

/// The victim answers no more: the test kills it, or it stops itself.
void stop_here() {
  if (std::getenv("STOPS") != nullptr) std::raise(SIGSTOP);
  mark("kill me");
  std::this_thread::sleep_for(std::chrono::minutes(5));
}

/// Where the victim leaves: between its second and third layer, in forward or in backward, where
/// the next group's gather is under way; or before the norm of the gradients is reduced.
enum class Place { forward, backward, clipping };

void train_with_victim(Place place) {
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
    if (victim && place == Place::forward) stop_here();
    if (victim && place == Place::backward) {
      hidden.register_hook([](const at::Tensor& gradient) {
        stop_here();
        return gradient;
      });
    }
    const at::Tensor out = layers[3]->forward(at::tanh(layers[2]->forward(hidden)));
    mark("through forward");
    at::mse_loss(out, mine.y).backward();
    mark("through backward");
    if (victim) stop_here();
    clip_grad_norm_(net->parameters(), 1.0);
    mark("through clipping");
  });
  mark("error: " + error);
  EXPECT_NE(error_of([&] { net->forward(mine.x); }), "");  // it says so again, and does not hang
}

const Scenario kInForward("in forward", [] { train_with_victim(Place::forward); });
const Scenario kInBackward("in backward", [] { train_with_victim(Place::backward); });
const Scenario kInClipping("in clipping", [] { train_with_victim(Place::clipping); });

/// run_processes ends what a bad wait would keep, long before the timeout of the library.
void the_others_name_it(const Scenario& scenario, int victim, Place place) {
  const auto results = run_processes(
      scenario,
      {.size = 3,
       .kill_rank = victim,
       .environment = {{"TESSERA_TIMEOUT_S", "120"}, {"VICTIM", std::to_string(victim)}}});
  bool named = false;
  for (const ProcessResult& result : results) {
    if (result.rank == victim) {
      EXPECT_EQ(result.signal, SIGKILL) << result.to_text();
      continue;
    }
    EXPECT_TRUE(result.ok()) << result.to_text();
    EXPECT_EQ(result.says("through forward"), place != Place::forward) << result.to_text();
    EXPECT_EQ(result.says("through backward"), place == Place::clipping) << result.to_text();
    EXPECT_FALSE(result.says("through clipping")) << result.to_text();
    EXPECT_TRUE(result.says("error: PeerError: rank " + std::to_string(result.rank) + ": "))
        << result.to_text();
    EXPECT_TRUE(result.says("(ranks 0,1,2) failed")) << result.to_text();
    named =
        named || result.says(victim == 0 ? std::string("rank 0, which hosts it, is gone")
                                         : "no sign of life from rank " + std::to_string(victim));
  }
  EXPECT_TRUE(named) << results[victim == 2 ? 1 : 2].to_text();
}

TEST(FullyShardProcessFailure, ARankKilledInForwardEndsTheStepOfTheOthers) {
  the_others_name_it(kInForward, 1, Place::forward);
}

TEST(FullyShardProcessFailure, ARankKilledInBackwardEndsTheStepOfTheOthers) {
  the_others_name_it(kInBackward, 1, Place::backward);
}

TEST(FullyShardProcessFailure, ARankKilledBeforeClippingEndsItForTheOthers) {
  the_others_name_it(kInClipping, 2, Place::clipping);
}

TEST(FullyShardProcessFailure, KillingTheRankThatHostsTheStoreIsNoWorse) {
  the_others_name_it(kInBackward, 0, Place::backward);
}

/// The survivor that ends last lets the stopped process go.
void end_stopped(const DeviceMesh& mesh, const at::Tensor& pids) {
  const std::filesystem::path other_knows = std::getenv("OTHER_KNOWS");
  if (mesh.local_rank("dp") == 2) {
    std::ofstream(other_knows) << "it does";
    return;
  }
  while (!std::filesystem::exists(other_knows)) {
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  kill(static_cast<pid_t>(pids[1].item<int64_t>()), SIGKILL);
}

const Scenario kStopped("stopped", [] {
  const DeviceMesh mesh = init_device_mesh("dp=3");
  const at::Tensor pids = full_tensor(
      from_local(at::full({1}, static_cast<int64_t>(getpid()), at::kLong), mesh, {Shard(0)}));
  train_with_victim(Place::backward);
  end_stopped(mesh, pids);
});

/// A stopped process closes no link: the others wait until the timeout, and then say which it is.
TEST(FullyShardProcessFailure, AStoppedRankIsNamedAfterTheTimeout) {
  const auto file =
      std::filesystem::temp_directory_path() / ("tessera_other_knows_" + std::to_string(getpid()));
  const auto results = run_processes(kStopped, {.size = 3,
                                                .environment = {{"TESSERA_TIMEOUT_S", "2"},
                                                                {"VICTIM", "1"},
                                                                {"STOPS", "1"},
                                                                {"OTHER_KNOWS", file.string()}}});
  std::filesystem::remove(file);
  for (const ProcessResult& result : results) {
    if (result.rank == 1) continue;
    EXPECT_TRUE(result.ok()) << result.to_text();
    EXPECT_FALSE(result.says("through backward")) << result.to_text();
    EXPECT_TRUE(result.says("no sign of life from rank 1 (stopped or unreachable"))
        << result.to_text();
  }
}

}  // namespace process_failure_test
}  // namespace tessera::test
