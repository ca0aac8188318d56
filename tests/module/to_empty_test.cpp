// Modules made on meta, sharded, and filled after it.
#include "tessera/module/to_empty.h"

#include <torch/nn/init.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/batchnorm.h>

#include "tessera/base/errors.h"
#include "tessera/comm/rank_generator.h"
#include "tessera/module/distribute_module.h"
#include "tessera/module/meta_init.h"
#include "tessera/module/state.h"
#include "tests/fsdp/training.h"

namespace tessera {
namespace to_empty_test {

using namespace test;

const std::vector<int64_t> kWidths = {6, 90, 70, 3};  // large and small parameters

/// An mlp and a batch norm without memory.
torch::nn::Sequential on_meta() {
  const MetaInit meta;
  torch::nn::Sequential net;
  for (size_t i = 0; i + 1 < kWidths.size(); ++i) {
    if (i > 0) net->push_back(torch::nn::Tanh());
    net->push_back(torch::nn::Linear(kWidths[i], kWidths[i + 1]));
  }
  net->push_back(torch::nn::BatchNorm1d(kWidths.back()));
  net->to(at::kDouble);
  return net;
}

void init(torch::nn::Sequential& net) {
  comm::manual_seed(7);
  for (auto* layer : layers_of(net)) layer->reset_parameters();
  const auto parameters = net->named_parameters();
  torch::nn::init::xavier_normal_(parameters["0.weight"]);
  torch::nn::init::kaiming_uniform_(parameters["2.weight"]);
  torch::nn::init::normal_(parameters["2.bias"], 0.5, 0.1);
  torch::nn::init::constant_(parameters["4.bias"], 3);
  net->children().back()->as<torch::nn::BatchNorm1dImpl>()->reset_parameters();
}

FullStateDict state_on(
    const std::string& text, int ranks,
    const std::function<void(torch::nn::Sequential&, const DeviceMesh&)>& shard) {
  FullStateDict out;
  run_ranks(ranks, [&](int rank) {
    const DeviceMesh mesh = init_device_mesh(text);
    auto net = on_meta();
    shard(net, mesh);
    for (const at::Tensor& parameter : net->parameters()) {
      EXPECT_TRUE(parameter.is_meta() && is_dtensor(parameter) && parameter.requires_grad());
    }
    to_empty(*net, at::kCPU);
    init(net);
    const FullStateDict state = full_state_dict(*net);
    for (const auto& [name, tensor] : state) EXPECT_FALSE(tensor.is_meta()) << name;
    if (rank == 0) out = state;
  });
  return out;
}

TEST(ToEmpty, RandomValuesAreTheSameOnAnyMesh) {
  const auto shard = [](auto& net, const auto& mesh) { fully_shard(*net, mesh); };
  const FullStateDict want = state_on("dp=1", 1, shard);
  EXPECT_GT(want.at("0.weight").std().item<double>(), 0.1);
  const auto same = [&](const FullStateDict& got, const std::string& text) {
    ASSERT_EQ(got.size(), want.size());
    for (const auto& [name, tensor] : want) EXPECT_TRUE(at::equal(got.at(name), tensor)) << text;
  };
  same(state_on("dp=2", 2, shard), "dp=2");
  same(state_on("dp=3", 3, shard), "dp=3");
  same(state_on("dp=2,fs=2", 4, shard), "dp=2,fs=2");
  same(state_on("dp=2", 2, [](auto& net, const auto& mesh) { replicate(*net, mesh); }), "replicas");
  same(state_on("dp=2", 2,
                [](auto& net, const auto& mesh) {
                  for (auto* layer : layers_of(net)) fully_shard(*layer, mesh);
                  fully_shard(*net, mesh, {.offload_policy = CPUOffloadPolicy()});
                }),
       "several groups");
  same(state_on("dp=2,tp=2", 4,
                [](auto& net, const auto& mesh) {
                  distribute_(layers_of(net)[0]->weight, mesh["tp"], {Shard(0)}, {{}});
                  distribute_module(*net, mesh["tp"], {}, {{}});
                  fully_shard(*net, mesh["dp"]);
                }),
       "tensor parallelism");
}

/// Made before to_empty, the optimizer holds the same tensors.
TEST(ToEmpty, TrainsAfterIt) {
  run_ranks(2, [](int rank) {
    const DeviceMesh mesh = init_device_mesh("dp=2");
    const Batch batch = make_batch(8, kWidths.front(), kWidths.back());
    auto plain = make_mlp(kWidths);
    torch::nn::Sequential net;
    {
      const MetaInit meta;
      for (size_t i = 0; i + 1 < kWidths.size(); ++i) {
        if (i > 0) net->push_back(torch::nn::Tanh());
        net->push_back(torch::nn::Linear(kWidths[i], kWidths[i + 1]));
      }
      net->to(at::kDouble);
    }
    auto optimizer = adamw()(net->parameters());
    shard_layers(net, mesh);
    to_empty(*net, at::kCPU);
    load_full_state_dict(*net, full_state_dict(*plain));
    auto alone = adamw()(plain->parameters());
    train(forward_of(plain), *alone, batch, 5);
    train(forward_of(net), *optimizer, batch.part(rank, 2), 5);
    EXPECT_EQ(parameters_differ(*net, *plain), "");
  });
}

/// Only what names no device, only while the guard lives, only on its thread.
TEST(MetaInit, MakesTensorsThatNameNoDeviceWithoutMemory) {
  {
    const MetaInit meta;
    EXPECT_TRUE(torch::nn::Linear(3, 4)->weight.is_meta());
    EXPECT_TRUE(torch::zeros({2}).is_meta());
    EXPECT_TRUE(torch::randn({2}).is_meta());
    EXPECT_TRUE(torch::arange(5).is_meta());
    const at::Tensor given = torch::ones({2}, at::kCPU);
    EXPECT_FALSE(given.is_meta());
    EXPECT_FALSE(torch::zeros_like(given).is_meta());
    EXPECT_FALSE(given.new_empty({3}).is_meta());
    EXPECT_TRUE(torch::equal(given + given, given * 2));
    {
      const MetaInit inner;
      EXPECT_TRUE(torch::zeros({2}).is_meta());
    }
    EXPECT_TRUE(torch::zeros({2}).is_meta());
  }
  EXPECT_FALSE(torch::zeros({2}).is_meta());
}

TEST(ToEmpty, UseBeforeItIsAnErrorThatNamesIt) {
  run_ranks(2, [](int) {
    const DeviceMesh mesh = init_device_mesh("dp=2");
    auto net = on_meta();
    const auto refused = [](const std::function<void()>& use) {
      try {
        use();
        ADD_FAILURE() << "a parameter on meta was used";
      } catch (const InvalidArgument& error) {
        EXPECT_NE(std::string(error.what()).find("to_empty"), std::string::npos) << error.what();
      }
    };
    fully_shard(*net, mesh);
    refused([&] { layers_of(net)[0]->forward(at::ones({1, 6}, at::kDouble)); });
    refused([&] { unshard(*net); });
    refused([&] { load_full_state_dict(*net, full_state_dict(*make_mlp(kWidths))); });
    EXPECT_THROW(full_state_dict(*net), InvalidArgument);
    EXPECT_THROW(to_empty(*net, at::kMeta), InvalidArgument);
    to_empty(*net, at::kCPU);
    init(net);
    to_empty(*net, at::kCPU);  // nothing is on meta any more: values stay
    EXPECT_TRUE(at::equal(full_tensor(net->named_parameters()["4.bias"].detach()),
                          at::full({3}, 3.0, at::kDouble)));
  });
}

TEST(ToEmpty, OfPlainAndOfDistributedModules) {
  run_ranks(2, [](int) {
    auto plain = on_meta();
    to_empty(*plain, at::kCPU);
    init(plain);
    plain->forward(at::ones({2, 6}, at::kDouble)).sum().backward();
    EXPECT_TRUE(plain->parameters()[0].grad().defined());
    auto net = on_meta();
    distribute_module(*net, init_device_mesh("tp=2"), {}, {{}});
    to_empty(*net, at::kCPU);
    init(net);
    EXPECT_FALSE(net->parameters()[0].is_meta());
    EXPECT_EQ(full_state_dict(*net).at("4.bias").sum().item<double>(), 9);
  });
}

}  // namespace to_empty_test
}  // namespace tessera
