// fully_shard between real processes over Gloo.
#include "tessera/comm/processes.h"

#include <gtest/gtest.h>

#include <chrono>
#include <thread>

#include "tessera/comm/recorder.h"
#include "tessera/comm/world.h"
#include "tessera/fsdp/fully_shard.h"
#include "tests/fsdp/training.h"
#include "tests/support/processes.h"

namespace tessera {
namespace {

using comm::CommOp;
using test::adamw;
using test::Batch;
using test::layers_of;
using test::make_batch;
using test::make_mlp;
using test::parameters_differ;
using test::sgd;
using test::train;
using testing::failures;
using testing::run_processes;
using testing::Scenario;

/// What is still gathered once Gloo's worker has put down the last call it finished.
int64_t bytes_left(const DeviceMesh& mesh) {
  for (int tries = 0; tries < 1000 && gathered_memory(mesh).bytes != 0; ++tries) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return gathered_memory(mesh).bytes;
}

/// Ten steps as one rank does them with the whole batch; small and large layers, uneven parts.
void trains_as_one_rank(const char* text, const std::vector<int64_t>& widths,
                        const test::MakeOptimizer& make,
                        std::optional<int64_t> merge_bytes = std::nullopt) {
  const DeviceMesh mesh = comm::init_device_mesh(text);
  const auto world = comm::current_world();
  const Batch batch = make_batch(12, widths.front(), widths.back());
  auto plain = make_mlp(widths);
  auto alone = make(plain->parameters());
  train([&](const at::Tensor& x) { return plain->forward(x); }, *alone, batch, 10);
  auto net = make_mlp(widths);
  auto optimizer = make(net->parameters());
  for (auto* layer : layers_of(net)) fully_shard(*layer, mesh, {.merge_bytes = merge_bytes});
  const Batch mine = batch.part(world->rank(), world->size());
  const auto forward = [&](const at::Tensor& x) { return net->forward(x); };
  train(forward, *optimizer, mine, 9);
  comm::Recorder recorder(*world);
  train(forward, *optimizer, mine, 1);
  const int layers = static_cast<int>(layers_of(net).size());
  EXPECT_EQ(recorder.count(CommOp::all_gather), merge_bytes == 0 ? 2 * layers - 2 : 1)
      << recorder.to_text();
  EXPECT_EQ(recorder.count(CommOp::reduce_scatter), merge_bytes == 0 ? layers : 1)
      << recorder.to_text();
  EXPECT_EQ(bytes_left(mesh), 0);
  EXPECT_EQ(parameters_differ(*net, *plain), "") << text;
}

const Scenario kOnTwo("on two", [] {
  trains_as_one_rank("dp=2", {6, 10, 7, 3}, sgd());
  trains_as_one_rank("dp=2", {64, 96, 65, 70}, adamw(), 0);
});

const Scenario kOnThree("on three", [] {
  trains_as_one_rank("dp=3", {6, 10, 7, 3}, adamw());
  trains_as_one_rank("dp=3", {64, 96, 65, 70}, sgd(), 0);
});

const Scenario kReplicas("replicas", [] {
  trains_as_one_rank("dp=2,fs=2", {6, 10, 7, 3}, adamw());
  trains_as_one_rank("dp=2,fs=2", {64, 96, 65, 70}, sgd(), 0);
});

TEST(FullyShardProcesses, TwoTrainAsOneRank) {
  EXPECT_EQ(failures(run_processes(kOnTwo, {.size = 2})), "");
}

TEST(FullyShardProcesses, ThreeTrainAsOneRank) {
  EXPECT_EQ(failures(run_processes(kOnThree, {.size = 3})), "");
}

TEST(FullyShardProcesses, ReplicasOfShardsTrainAsOneRank) {
  EXPECT_EQ(failures(run_processes(kReplicas, {.size = 4})), "");
}

}  // namespace
}  // namespace tessera
