// Parameters of one call on several meshes: experts that a part of the ranks shares.
#include "tessera/base/errors.h"
#include "tessera/module/clip_grad.h"
#include "tessera/module/state.h"
#include "tests/fsdp/training.h"

namespace tessera {
namespace parameter_mesh_test {

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
void trains_as_written_out(int parts, int ranks_of_each) {
  const int ranks = parts * ranks_of_each;
  const std::string text = join_text("ep=", parts, ",fs=", ranks_of_each);
  SCOPED_TRACE(text);
  run_ranks(ranks, [&](int rank) {
    const DeviceMesh mesh = init_device_mesh(text);
    const DeviceMesh all = mesh.flatten({"ep", "fs"}, "all");
    const auto expert_of = [&](int r) { return static_cast<size_t>(r / ranks_of_each); };
    const Batch batch = make_batch(2 * ranks, 6, 3);
    auto net = with_expert(static_cast<int64_t>(expert_of(rank)));
    fully_shard(*net, all, {.shard_mesh = [&](const std::string& name, const at::Tensor&) {
      return is_expert(name) ? std::optional(mesh["fs"]) : std::nullopt;
    }});
    EXPECT_EQ(sharded_groups(*net).size(), 2u);
    EXPECT_EQ(device_mesh(layers_of(net)[0]->weight), all);
    EXPECT_EQ(device_mesh(layers_of(net)[1]->weight), mesh["fs"]);
    std::vector<torch::nn::Sequential> experts;
    for (int part = 0; part < parts; ++part) experts.push_back(with_expert(part));
    auto optimizer = sgd()(net->parameters());
    std::vector<std::unique_ptr<torch::optim::Optimizer>> alone;
    for (auto& one : experts) alone.push_back(sgd()(one->parameters()));
    for (int step = 0; step < 4; ++step) {
      optimizer->zero_grad();
      const Batch mine = batch.part(rank, ranks);
      at::mse_loss(net->forward(mine.x), mine.y).backward();
      for (auto& one : alone) one->zero_grad();
      for (int r = 0; r < ranks; ++r) {
        const Batch part = batch.part(r, ranks);
        (at::mse_loss(experts[expert_of(r)]->forward(part.x), part.y) / ranks).backward();
      }
      // What all copies share has the sum of their gradients.
      for (const auto& item : experts[0]->named_parameters()) {
        if (is_expert(item.key())) continue;
        at::Tensor sum = at::zeros_like(item.value().detach());
        for (const auto& one : experts) sum += one->named_parameters()[item.key()].grad();
        for (const auto& one : experts) {
          one->named_parameters()[item.key()].mutable_grad().copy_(sum);
        }
      }
      EXPECT_EQ(gradients_differ(*net, *experts[expert_of(rank)]), "");
      optimizer->step();
      for (auto& one : alone) one->step();
      EXPECT_EQ(gathered_memory(mesh).bytes, 0);
    }
    EXPECT_EQ(parameters_differ(*net, *experts[expert_of(rank)]), "");
  });
}

TEST(FullyShardParameterMesh, ExpertsAreShardedOverTheirOwnRanks) {
  trains_as_written_out(2, 1);
  trains_as_written_out(2, 2);
  trains_as_written_out(2, 4);
  trains_as_written_out(4, 2);
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

}  // namespace parameter_mesh_test
}  // namespace tessera
