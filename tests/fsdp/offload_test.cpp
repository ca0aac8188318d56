// Shards that rest on the host. With a CUDA device the parameters are gathered there; without one
// the same path runs with the CPU as the device that computes.
#include <ATen/Context.h>

#include "tessera/base/errors.h"
#include "tessera/module/clip_grad.h"
#include "tessera/module/distribute_module.h"
#include "tessera/module/state.h"
#include "tests/fsdp/training.h"

namespace tessera {
namespace offload_test {

using namespace test;

const std::vector<int64_t> kWidths = {6, 90, 70, 3};
const FullyShardOptions kOffload = {.offload_policy = CPUOffloadPolicy()};

/// Five steps with clipping and evaluation end where one rank without any of it ends.
void trains_offloaded(const std::string& text, const std::string& device,
                      const FullyShardOptions& options) {
  const int ranks = DeviceMesh::parse(text).size();
  const Batch batch = make_batch(12, kWidths.front(), kWidths.back());
  const bool cuda = device == "cuda";
  const double tolerance = cuda ? 1e-8 : 1e-10;
  run_ranks(ranks, [&](int rank) {
    const DeviceMesh mesh = init_device_mesh(device + ":" + text);
    auto plain = make_mlp(kWidths);
    auto net = make_mlp(kWidths);
    shard_layers(net, mesh, options);
    for (const at::Tensor& parameter : net->parameters()) {
      EXPECT_EQ(parameter.is_cuda(), cuda);  // where it is computed with
      EXPECT_TRUE(to_local(parameter.detach()).is_cpu());
      EXPECT_EQ(to_local(parameter.detach()).is_pinned(), cuda);
    }
    auto alone = adamw()(plain->parameters());
    auto optimizer = adamw()(net->parameters());
    const Batch part = batch.part(rank, ranks);
    const auto to = [&](const at::Tensor& x) { return x.to(c10::Device(device)); };
    const Batch mine = {to(part.x), to(part.y)};
    for (int step = 0; step < 5; ++step) {
      alone->zero_grad();
      optimizer->zero_grad();
      at::mse_loss(plain->forward(batch.x), batch.y).backward();
      at::mse_loss(net->forward(mine.x), mine.y).backward();
      EXPECT_EQ(gathered_memory(mesh).bytes, 0) << text;
      for (const at::Tensor& parameter : net->parameters()) {
        EXPECT_TRUE(to_local(parameter.grad()).is_cpu());
      }
      const double want = clip_grad_norm_(plain->parameters(), 0.1).item<double>();
      EXPECT_NEAR(clip_grad_norm_(net->parameters(), 0.1).item<double>(), want, tolerance);
      alone->step();
      optimizer->step();
      const torch::NoGradGuard no_grad;
      const at::Tensor out = net->forward(mine.x);
      EXPECT_EQ(out.is_cuda(), cuda);
      EXPECT_TRUE(at::allclose(out.cpu(), plain->forward(part.x), tolerance, tolerance));
    }
    for (const auto& [name, tensor] : full_state_dict(*net)) {
      EXPECT_TRUE(
          at::allclose(tensor, plain->named_parameters()[name].detach(), tolerance, tolerance))
          << name << " on " << text;
    }
  });
}

const std::vector<std::string> kMeshes = {"dp=1", "dp=2", "dp=3", "dp=2,fs=2"};

TEST(CPUOffloadPolicy, TrainsAsOneRank) {
  for (const std::string& mesh : kMeshes) trains_offloaded(mesh, "cpu", kOffload);
}

TEST(CPUOffloadPolicy, OnADeviceTrainsAsOneRank) {
  if (!at::hasCUDA()) GTEST_SKIP() << "no CUDA device";
  for (const std::string& mesh : kMeshes) trains_offloaded(mesh, "cuda", kOffload);
}

/// Gradients of backwards that reduce nothing stay on the device; the sum moves to the CPU.
TEST(CPUOffloadPolicy, AccumulatesAndKeepsParametersBetween) {
  run_ranks(2, [](int rank) {
    const DeviceMesh mesh = init_device_mesh("dp=2");
    const Batch batch = make_batch(8, kWidths.front(), kWidths.back());
    auto plain = make_mlp(kWidths);
    auto net = make_mlp(kWidths);
    shard_layers(net, mesh, {.reshard_after_forward = false, .offload_policy = CPUOffloadPolicy()});
    for (int small = 0; small < 3; ++small) {
      set_requires_gradient_sync(*net, small != 1);
      const Batch mine = batch.part(rank, 2);
      at::mse_loss(plain->forward(batch.x), batch.y).backward();
      at::mse_loss(net->forward(mine.x), mine.y).backward();
    }
    EXPECT_EQ(gradients_differ(*net, *plain), "");
  });
}

TEST(CPUOffloadPolicy, OverTensorParallelism) {
  run_ranks(4, [](int rank) {
    const DeviceMesh mesh = init_device_mesh("dp=2,tp=2");
    const Batch batch = make_batch(8, 6, 4);
    auto plain = make_mlp({6, 10, 4});
    auto net = make_mlp({6, 10, 4});
    distribute_(layers_of(net)[0]->weight, mesh["tp"], {Shard(0)});
    distribute_(layers_of(net)[0]->bias, mesh["tp"], {Shard(0)});
    distribute_(layers_of(net)[1]->weight, mesh["tp"], {Shard(1)});
    distribute_module(*net, mesh["tp"]);
    fully_shard(*net, mesh["dp"], kOffload);
    const Batch mine = batch.part(rank / 2, 2);
    const auto over_tp = [&](const at::Tensor& x) {
      return distribute_tensor(x, mesh["tp"], {Replicate()});
    };
    at::mse_loss(plain->forward(batch.x), batch.y).backward();
    at::mse_loss(net->forward(over_tp(mine.x)), over_tp(mine.y)).backward();
    EXPECT_EQ(gradients_differ(*net, *plain), "");
  });
}

}  // namespace offload_test
}  // namespace tessera
