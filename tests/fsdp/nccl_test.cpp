// fully_shard between processes over NCCL: one process a GPU where there are enough. Else they
// share one: NCCL refuses that for ranks of one host, so each gets a host name of its own, and they
// communicate over the loopback interface.
#include <ATen/Context.h>
#include <signal.h>

#include <chrono>
#include <thread>

#include "tessera/comm/processes.h"
#include "tessera/comm/world.h"
#include "tessera/module/clip_grad.h"
#include "tessera/module/distribute_module.h"
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
int at_least_two() { return std::max(2, gpus()); }

RunOptions processes(int size) {
  const bool shared = gpus() < size;
  return {
      .size = size, .deadline = std::chrono::seconds(120), .environment_of = [shared](int rank) {
        const std::string own = std::to_string(rank);
        if (!shared) return std::map<std::string, std::string>{{"LOCAL_RANK", own}};
        return std::map<std::string, std::string>{{"LOCAL_RANK", "0"},
                                                  {"NCCL_HOSTID", "rank" + own},
                                                  {"NCCL_SOCKET_IFNAME", "lo"},
                                                  {"NCCL_NET", "Socket"}};
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
  // CPU tensors beside them, over Gloo.
  const DeviceMesh hosts = init_device_mesh("dp=" + std::to_string(world->size()));
  const at::Tensor addends = from_local(at::ones({3}), hosts, {Partial()});
  EXPECT_EQ(full_tensor(addends).sum().item<float>(), 3.0f * static_cast<float>(world->size()));
  comm::close_process_world();
});

/// Tensor parallelism over one axis, fully_shard over the other.
const Scenario kTwoAxes("two_axes", [] {
  const auto world = comm::process_world();
  const DeviceMesh mesh = init_device_mesh("cuda:dp=2,tp=2");
  EXPECT_NE(&comm::group_of(mesh, "dp")->backend(at::kCUDA),
            &comm::group_of(mesh, "tp")->backend(at::kCUDA));
  const Batch batch = make_batch(8, 6, 4);
  auto plain = make_mlp({6, 10, 4});
  auto net = make_mlp({6, 10, 4});
  plain->to(at::kCUDA);
  net->to(at::kCUDA);
  distribute_(layers_of(net)[0]->weight, mesh["tp"], {Shard(0)});
  distribute_(layers_of(net)[0]->bias, mesh["tp"], {Shard(0)});
  distribute_(layers_of(net)[1]->weight, mesh["tp"], {Shard(1)});
  distribute_module(*net, mesh["tp"]);
  fully_shard(*net, mesh["dp"]);
  const Batch mine = on_gpu(batch.part(world->rank() / 2, 2));
  const auto over_tp = [&](const at::Tensor& x) {
    return distribute_tensor(x, mesh["tp"], {Replicate()});
  };
  at::mse_loss(plain->forward(on_gpu(batch).x), on_gpu(batch).y).backward();
  at::mse_loss(net->forward(over_tp(mine.x)), over_tp(mine.y)).backward();
  EXPECT_EQ(gradients_differ(*net, *plain), "");
  comm::close_process_world();
});

/// The last rank stops to take part after a step; the others must not wait longer than the timeout.
void train_until_error(const std::function<void()>& last_rank_does) {
  const auto world = comm::process_world();
  const DeviceMesh mesh = init_device_mesh("cuda:dp=" + std::to_string(world->size()));
  Twins twins(mesh);
  const Batch mine = on_gpu(make_batch(4, kWidths.front(), kWidths.back()));
  step(twins.net, *twins.optimizer, mine);
  mark("trained a step");
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

class FullyShardNccl : public ::testing::Test {
 protected:
  void SetUp() override {
    if (gpus() == 0) GTEST_SKIP() << "no GPU";
  }
};

TEST_F(FullyShardNccl, TrainsAsOneRank) {
  for (const int size : {1, at_least_two()}) {
    EXPECT_EQ(failures(run_processes(kTrains, processes(size))), "") << size << " processes";
  }
}

TEST_F(FullyShardNccl, EachAxisHasACommunicatorOfItsOwn) {
  EXPECT_EQ(failures(run_processes(kTwoAxes, processes(4))), "");
}

/// All but the last rank: by an error, or by NCCL's watchdog, which aborts the process.
void expect_ended_early(const Scenario& scenario, const RunOptions& options) {
  for (const auto& result : run_processes(scenario, options)) {
    EXPECT_TRUE(result.says("trained a step")) << result.to_text();
    if (result.rank == options.size - 1) continue;
    EXPECT_FALSE(result.timed_out) << result.to_text();
    EXPECT_TRUE(result.says("ended with an error") || result.signal == SIGABRT) << result.to_text();
  }
}

TEST_F(FullyShardNccl, AKilledRankEndsTheOthers) {
  RunOptions options = processes(at_least_two());
  options.kill_rank = options.size - 1;
  expect_ended_early(kKilled, options);
}

TEST_F(FullyShardNccl, ARankThatDoesNotCallIsATimeout) {
  RunOptions options = processes(at_least_two());
  options.environment = {{"TESSERA_TIMEOUT_S", "5"}};
  expect_ended_early(kAsleep, options);
}

}  // namespace nccl_test
}  // namespace tessera::test
