// Parameters of one call on several meshes: experts that a part of the ranks shares.
#include "tessera/base/errors.h"
#include "tessera/fsdp/clip_grad.h"
#include "tessera/fsdp/state.h"
#include "tests/fsdp/training.h"

namespace tessera {
namespace {

using namespace test;

/// Two layers that all ranks share and one between them that is another on each part of the ranks.
torch::nn::Sequential with_expert(int64_t number) {
  auto net = make_mlp({6, 80, 70, 3});
  const torch::NoGradGuard no_grad;
  for (const at::Tensor& parameter : layers_of(net)[1]->parameters()) parameter.mul_(number + 1);
  return net;
}

bool is_expert(const std::string& name) { return name[0] == '2'; }

/// What each rank's batch gives through its own expert, by name; means over all ranks for what is
/// shared, and over all ranks' batches, of which only its own ranks bring something, for experts.
void trains_as_written_out(const char* text,
                           const std::function<DeviceMesh(const DeviceMesh&)>& of) {
  run_ranks(4, [&](int rank) {
    const DeviceMesh mesh = init_device_mesh(text);
    const DeviceMesh all = mesh.flatten({"ep", "fs"}, "all");
    const Batch batch = make_batch(8, 6, 3);
    auto net = with_expert(rank / 2);
    fully_shard(*net, all, {.shard_mesh = [&](const std::string& name, const at::Tensor&) {
      return is_expert(name) ? std::optional(of(mesh)) : std::nullopt;
    }});
    EXPECT_EQ(sharded_groups(*net).size(), 2u);
    EXPECT_EQ(device_mesh(layers_of(net)[0]->weight), all);
    EXPECT_EQ(device_mesh(layers_of(net)[1]->weight), of(mesh));
    std::vector<torch::nn::Sequential> experts = {with_expert(0), with_expert(1)};
    auto optimizer = sgd()(net->parameters());
    std::vector<std::unique_ptr<torch::optim::Optimizer>> alone;
    for (auto& one : experts) alone.push_back(sgd()(one->parameters()));
    for (int step = 0; step < 4; ++step) {
      optimizer->zero_grad();
      const Batch mine = batch.part(rank, 4);
      at::mse_loss(net->forward(mine.x), mine.y).backward();
      for (auto& one : alone) one->zero_grad();
      for (int r = 0; r < 4; ++r) {
        const Batch part = batch.part(r, 4);
        (at::mse_loss(experts[static_cast<size_t>(r / 2)]->forward(part.x), part.y) / 4).backward();
      }
      // What both copies share has the sum of their gradients.
      for (const auto& item : experts[0]->named_parameters()) {
        if (is_expert(item.key())) continue;
        const at::Tensor other = experts[1]->named_parameters()[item.key()];
        item.value().mutable_grad().add_(other.grad());
        other.mutable_grad().copy_(item.value().grad());
      }
      EXPECT_EQ(gradients_differ(*net, *experts[static_cast<size_t>(rank / 2)]), "");
      optimizer->step();
      for (auto& one : alone) one->step();
      EXPECT_EQ(gathered_memory(mesh).bytes, 0);
    }
    EXPECT_EQ(parameters_differ(*net, *experts[static_cast<size_t>(rank / 2)]), "");
  });
}

TEST(FullyShardParameterMesh, ExpertsAreCutOverTheirOwnRanks) {
  trains_as_written_out("ep=2,fs=2", [](const DeviceMesh& mesh) { return mesh["fs"]; });
}

TEST(FullyShardParameterMesh, IsRefusedLikeTheCallsMesh) {
  run_ranks(2, [](int) {
    const DeviceMesh mesh = init_device_mesh("dp=2");
    auto net = make_mlp({4, 2});
    EXPECT_THROW(fully_shard(*net, mesh,
                             {.shard_mesh =
                                  [](const std::string&, const at::Tensor&) {
                                    return std::optional(DeviceMesh::parse("fs=2"));
                                  }}),
                 InvalidArgument);
    EXPECT_FALSE(is_dtensor(net->parameters()[0]));
  });
}

}  // namespace
}  // namespace tessera
