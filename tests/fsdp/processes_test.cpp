// fully_shard between real processes over Gloo.
#include "tessera/comm/processes.h"

#include <gtest/gtest.h>

#include <chrono>
#include <thread>

#include "tessera/comm/world.h"
#include "tests/fsdp/training.h"
#include "tests/support/processes.h"

namespace tessera::test {
namespace processes_test {

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

/// Ten steps as one rank does them with the whole batch.
void ten_steps(const char* text, const Subject& subject, const MakeOptimizer& make,
               const FullyShardOptions& options = {}) {
  const DeviceMesh mesh = init_device_mesh(text);
  const auto world = comm::current_world();
  Model plain = subject.make();
  train_model(plain, *make(plain.module->parameters()), subject.batch, 10);
  Model model = subject.make();
  auto optimizer = make(model.module->parameters());
  by_parts(options)(model, mesh);
  const Batch mine = subject.batch.part(world->rank(), world->size());
  train_model(model, *optimizer, mine, 9);
  Recorder recorder(*world);
  train_model(model, *optimizer, mine, 1);
  recorder.stop();
  EXPECT_EQ(bytes_left(mesh), 0);
  EXPECT_EQ(parameters_differ(*model.module, *plain.module), "") << subject.name << " on " << text;
  if (subject.name != std::string("MLP")) return;
  const int layers = options.merge_bytes == 0 ? static_cast<int>(model.parts.size()) : 1;
  EXPECT_EQ(recorder.count(CommOp::all_gather), std::max(2 * layers - 2, 1)) << recorder.to_text();
  EXPECT_EQ(recorder.count(CommOp::reduce_scatter), layers) << recorder.to_text();
}

/// Small layers that travel together, large ones in uneven parts, attention, experts.
void all_train_as_one_rank(const char* text) {
  ten_steps(text, mlp_subject(), adamw());
  ten_steps(text, mlp_subject({64, 96, 65, 70}), sgd(), kUnmerged);
  ten_steps(text, gpt_subject(), adamw(), kUnmerged);
  ten_steps(text, moe_subject(), sgd(), kUnmerged);
}

/// Whole parameters: large and small gradients of all layers go in one all_reduce.
const Scenario kWholes("wholes", [] {
  const Subject subject = mlp_subject({64, 96, 65, 300});
  const DeviceMesh mesh = init_device_mesh("dp=2");
  Model plain = subject.make();
  train_model(plain, *adamw()(plain.module->parameters()), subject.batch, 5);
  Model model = subject.make();
  auto optimizer = adamw()(model.module->parameters());
  replicas_by_parts()(model, mesh);
  const Batch mine = subject.batch.part(comm::current_world()->rank(), 2);
  train_model(model, *optimizer, mine, 4);
  Recorder recorder(*comm::current_world());
  train_model(model, *optimizer, mine, 1);
  EXPECT_EQ(recorder.count(CommOp::all_reduce), 1) << recorder.to_text();
  EXPECT_EQ(recorder.count(), 1) << recorder.to_text();
  EXPECT_EQ(parameters_differ(*model.module, *plain.module), "");
});

/// The plans of a step are cached, for a world that ends with its process all the same.
const Scenario kDoneFirst("done first", [] {
  ten_steps("dp=2", mlp_subject(), sgd());
  if (comm::current_world()->rank() == 1) std::this_thread::sleep_for(std::chrono::seconds(1));
});

const Scenario kOnTwo("on two", [] { all_train_as_one_rank("dp=2"); });
const Scenario kOnThree("on three", [] { all_train_as_one_rank("dp=3"); });
const Scenario kOnFour("on four", [] { all_train_as_one_rank("dp=4"); });
const Scenario kReplicas("replicas", [] { all_train_as_one_rank("dp=2,fs=2"); });

TEST(FullyShardProcesses, TwoTrainAsOneRank) {
  EXPECT_EQ(failures(run_processes(kOnTwo, {.size = 2})), "");
}

TEST(FullyShardProcesses, WholeCopiesTrainAsOneRank) {
  EXPECT_EQ(failures(run_processes(kWholes, {.size = 2})), "");
}

TEST(FullyShardProcesses, ARankZeroThatIsDoneFirstWaitsForTheOthers) {
  const auto results = run_processes(kDoneFirst, {.size = 2});
  EXPECT_EQ(failures(results), "");
  for (const auto& result : results) EXPECT_EQ(result.output, "");  // no word of a lost store
}

TEST(FullyShardProcesses, ThreeTrainAsOneRank) {
  EXPECT_EQ(failures(run_processes(kOnThree, {.size = 3})), "");
}

TEST(FullyShardProcesses, FourTrainAsOneRank) {
  EXPECT_EQ(failures(run_processes(kOnFour, {.size = 4})), "");
}

TEST(FullyShardProcesses, ReplicasOfShardsTrainAsOneRank) {
  EXPECT_EQ(failures(run_processes(kReplicas, {.size = 4})), "");
}

}  // namespace processes_test
}  // namespace tessera::test
