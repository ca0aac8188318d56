// fully_shard between processes over NCCL, one process a GPU, on as many GPUs as the machine has.
// With one GPU the training runs on one rank; what needs a peer is skipped.
#include <ATen/Context.h>

#include <chrono>
#include <thread>

#include "tessera/comm/processes.h"
#include "tessera/comm/world.h"
#include "tessera/module/clip_grad.h"
#include "tests/fsdp/training.h"
#include "tests/support/processes.h"

namespace tessera::test {
namespace nccl_test {

using testing::error_of;
using testing::failures;
using testing::mark;
using testing::run_processes;
using testing::RunOptions;
using testing::Scenario;

const std::vector<int64_t> kWidths = {8, 96, 70, 4};

int gpus() { return at::hasCUDA() ? static_cast<int>(at::getNumGPUs()) : 0; }

RunOptions one_process_a_gpu() {
  return {.size = gpus(), .deadline = std::chrono::seconds(120), .environment_of = [](int rank) {
            return std::map<std::string, std::string>{{"LOCAL_RANK", std::to_string(rank)}};
          }};
}

Batch on_gpu(const Batch& batch) { return {batch.x.to(at::kCUDA), batch.y.to(at::kCUDA)}; }

/// A plain and a sharded model on this process's GPU, each with its optimizer.
struct Twins {
  explicit Twins(const DeviceMesh& mesh) : plain(make_mlp(kWidths)), net(make_mlp(kWidths)) {
    plain->to(at::kCUDA);
    net->to(at::kCUDA);
    shard_layers(net, mesh, kUnmerged);
    alone = adamw()(plain->parameters());
    optimizer = adamw()(net->parameters());
  }

  decltype(make_mlp(kWidths)) plain, net;
  std::unique_ptr<torch::optim::Optimizer> alone, optimizer;
};

template <class Net>
void step(Net& net, torch::optim::Optimizer& optimizer, const Batch& batch) {
  optimizer.zero_grad();
  at::mse_loss(net->forward(batch.x), batch.y).backward();
  clip_grad_norm_(net->parameters(), 0.5);
  optimizer.step();
}

const Scenario kTrains("trains", [] {
  const auto world = comm::process_world();
  const DeviceMesh mesh = init_device_mesh("cuda:dp=" + std::to_string(world->size()));
  Twins twins(mesh);
  const Batch batch = make_batch(4 * world->size(), kWidths.front(), kWidths.back());
  const Batch mine = on_gpu(batch.part(world->rank(), world->size()));
  for (int i = 0; i < 5; ++i) {
    step(twins.plain, *twins.alone, on_gpu(batch));
    step(twins.net, *twins.optimizer, mine);
  }
  for (size_t i = 0; i < twins.plain->parameters().size(); ++i) {
    const at::Tensor got = full_tensor(twins.net->parameters()[i].detach());
    EXPECT_TRUE(got.is_cuda());
    EXPECT_TRUE(at::allclose(got, twins.plain->parameters()[i].detach(), 1e-9, 1e-9)) << i;
  }
  comm::close_process_world();
});

/// The last rank stops to take part after a step; the others must not wait longer than the timeout.
void train_until_error(const std::function<void()>& last_rank_does) {
  const auto world = comm::process_world();
  const DeviceMesh mesh = init_device_mesh("cuda:dp=" + std::to_string(world->size()));
  Twins twins(mesh);
  const Batch mine = on_gpu(make_batch(4, kWidths.front(), kWidths.back()));
  step(twins.net, *twins.optimizer, mine);
  if (world->rank() == world->size() - 1) return last_rank_does();
  const std::string error = error_of([&] {
    for (int i = 0; i < 1000; ++i) {
      step(twins.net, *twins.optimizer, mine);
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
  });
  mark(error.empty() ? "trained on without a peer" : "ended with an error");
}

const Scenario kKilled("killed", [] {
  train_until_error([] {
    mark("kill me");
    std::this_thread::sleep_for(std::chrono::minutes(1));
  });
});

const Scenario kAsleep("asleep", [] {
  train_until_error([] { std::this_thread::sleep_for(std::chrono::seconds(30)); });
});

TEST(FullyShardNccl, TrainsAsOneRank) {
  if (gpus() == 0) GTEST_SKIP() << "no GPU";
  EXPECT_EQ(failures(run_processes(kTrains, one_process_a_gpu())), "");
}

TEST(FullyShardNccl, AKilledRankEndsTheOthers) {
  if (gpus() < 2) GTEST_SKIP() << "needs two GPUs";
  RunOptions options = one_process_a_gpu();
  options.kill_rank = gpus() - 1;
  for (const auto& result : run_processes(kKilled, options)) {
    if (result.rank == gpus() - 1) continue;
    EXPECT_FALSE(result.timed_out) << result.to_text();
    EXPECT_FALSE(result.says("trained on without a peer")) << result.to_text();
  }
}

TEST(FullyShardNccl, ARankThatDoesNotCallIsATimeout) {
  if (gpus() < 2) GTEST_SKIP() << "needs two GPUs";
  RunOptions options = one_process_a_gpu();
  options.environment = {{"TESSERA_TIMEOUT_S", "5"}};
  for (const auto& result : run_processes(kAsleep, options)) {
    if (result.rank == gpus() - 1) continue;
    EXPECT_FALSE(result.timed_out) << result.to_text();
    EXPECT_FALSE(result.says("trained on without a peer")) << result.to_text();
  }
}

}  // namespace nccl_test
}  // namespace tessera::test
