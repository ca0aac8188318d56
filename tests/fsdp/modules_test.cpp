// Modules of torch::nn under fully_shard, as they are: attention, norms, convolutions, recurrent
// nets. Outputs, gradients and evaluation agree with one rank and the whole batch.
#include <gtest/gtest.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/normalization.h>
#include <torch/nn/modules/rnn.h>
#include <torch/nn/modules/transformerlayer.h>

#include "tessera/comm/threads.h"
#include "tessera/fsdp/fully_shard.h"
#include "tests/fsdp/models.h"

namespace tessera {
namespace modules_test {

using comm::init_device_mesh;
using comm::run_ranks;
using test::Instance;
using test::test_numbers;

/// Forward and backward on each rank's part of the batch, dim `batch_dim` of input and output, and
/// an evaluation of the whole batch.
void works_as_on_one_rank(const std::function<Instance()>& make, const at::Tensor& input,
                          int64_t batch_dim = 0) {
  for (const int ranks : {2, 3}) {
    run_ranks(ranks, [&](int rank) {
      const DeviceMesh mesh = init_device_mesh("dp=" + std::to_string(ranks));
      Instance plain = make();
      Instance net = make();
      test::set_parameters(*plain.module, 11);
      test::set_parameters(*net.module, 11);
      fully_shard(*net.module, mesh);
      const int64_t rows = input.size(batch_dim) / ranks;
      for (int step = 0; step < 2; ++step) {
        for (auto* module : {plain.module.get(), net.module.get()}) module->zero_grad();
        const at::Tensor want = plain.call({input});
        want.pow(2).mean().backward();
        const at::Tensor got = net.call({input.narrow(batch_dim, rank * rows, rows)});
        got.pow(2).mean().backward();
        EXPECT_TRUE(at::allclose(got.detach(), want.detach().narrow(batch_dim, rank * rows, rows),
                                 1e-10, 1e-10));
        for (const auto& item : net.module->named_parameters()) {
          const at::Tensor expected = plain.module->named_parameters()[item.key()].grad();
          ASSERT_EQ(item.value().grad().defined(), expected.defined()) << item.key();
          if (!expected.defined()) continue;
          EXPECT_TRUE(at::allclose(full_tensor(item.value().grad()), expected, 1e-9, 1e-10))
              << item.key() << ", step " << step;
        }
        EXPECT_EQ(gathered_memory(mesh).bytes, 0);
      }
      const torch::NoGradGuard no_grad;
      plain.module->eval();
      net.module->eval();
      EXPECT_TRUE(at::allclose(net.call({input}), plain.call({input}), 1e-10, 1e-10));
    });
  }
}

TEST(FullyShardModules, TransformerEncoderLayer) {
  works_as_on_one_rank(
      [] {
        auto layer = std::make_shared<torch::nn::TransformerEncoderLayerImpl>(
            torch::nn::TransformerEncoderLayerOptions(8, 2).dim_feedforward(20).dropout(0));
        return Instance{layer, [layer](const auto& in) { return layer->forward(in[0]); }};
      },
      test_numbers({5, 6, 8}, 1), /*batch_dim=*/1);
}

TEST(FullyShardModules, LayerNormAndGroupNorm) {
  works_as_on_one_rank(
      [] {
        auto net = std::make_shared<torch::nn::SequentialImpl>(
            torch::nn::LayerNorm(torch::nn::LayerNormOptions({6})),
            torch::nn::GroupNorm(torch::nn::GroupNormOptions(2, 4)));
        return Instance{net, [net](const auto& in) { return net->forward(in[0]); }};
      },
      test_numbers({6, 4, 6}, 2));
}

TEST(FullyShardModules, Convolution) {
  works_as_on_one_rank(
      [] {
        auto net = std::make_shared<torch::nn::SequentialImpl>(
            torch::nn::Conv2d(torch::nn::Conv2dOptions(3, 5, 3).padding(1)), torch::nn::ReLU(),
            torch::nn::Conv2d(torch::nn::Conv2dOptions(5, 4, 2).stride(2)));
        return Instance{net, [net](const auto& in) { return net->forward(in[0]); }};
      },
      test_numbers({6, 3, 6, 6}, 3));
}

/// Each rank's batch has statistics of its own, so it is the whole batch's only in evaluation.
TEST(FullyShardModules, BatchNormKeepsItsBuffers) {
  run_ranks(2, [](int) {
    const DeviceMesh mesh = init_device_mesh("dp=2");
    torch::nn::BatchNorm1d plain(4);
    torch::nn::BatchNorm1d net(4);
    plain->to(at::kDouble);
    net->to(at::kDouble);
    fully_shard(*net, mesh);
    const at::Tensor x = test_numbers({6, 4}, 4);
    const at::Tensor want = plain->forward(x);
    const at::Tensor got = net->forward(x);
    want.pow(3).sum().backward();
    got.pow(3).sum().backward();
    EXPECT_TRUE(at::allclose(got.detach(), want.detach(), 1e-10, 1e-10));
    EXPECT_TRUE(at::allclose(full_tensor(net->weight.grad()), plain->weight.grad(), 1e-9, 1e-10));
    EXPECT_FALSE(is_dtensor(net->running_mean));
    EXPECT_TRUE(at::allclose(net->running_var, plain->running_var));
    plain->eval();
    net->eval();
    EXPECT_TRUE(at::allclose(net->forward(x).detach(), plain->forward(x).detach()));
  });
}

TEST(FullyShardModules, Lstm) {
  works_as_on_one_rank(
      [] {
        auto net = std::make_shared<torch::nn::LSTMImpl>(
            torch::nn::LSTMOptions(4, 5).num_layers(2).bidirectional(true));
        return Instance{net, [net](const auto& in) { return std::get<0>(net->forward(in[0])); }};
      },
      test_numbers({3, 6, 4}, 5), /*batch_dim=*/1);
}

TEST(FullyShardModules, Gru) {
  works_as_on_one_rank(
      [] {
        auto net = std::make_shared<torch::nn::GRUImpl>(torch::nn::GRUOptions(4, 5));
        return Instance{net, [net](const auto& in) { return std::get<0>(net->forward(in[0])); }};
      },
      test_numbers({3, 6, 4}, 6), /*batch_dim=*/1);
}

TEST(FullyShardModules, EmbeddingWithPadding) {
  works_as_on_one_rank(
      [] {
        auto net = std::make_shared<torch::nn::EmbeddingImpl>(
            torch::nn::EmbeddingOptions(9, 4).padding_idx(2));
        return Instance{net, [net](const auto& in) { return net->forward(in[0]); }};
      },
      test_numbers({6, 5}, 7, 9));
}

/// Parameters that meet each other before they meet the batch, also in evaluation.
TEST(FullyShardModules, ParametersThatAreComputedWithFirst) {
  struct Gated : torch::nn::Module {
    Gated() {
      weight = register_parameter("weight", at::ones({5, 4}));
      gate = register_parameter("gate", at::ones({5}));
    }
    at::Tensor weight, gate;
  };
  works_as_on_one_rank(
      [] {
        auto net = std::make_shared<Gated>();
        return Instance{net, [net](const auto& in) {
                          const at::Tensor w = net->weight * at::sigmoid(net->gate).unsqueeze(1);
                          return at::linear(in[0], w / w.norm());
                        }};
      },
      test_numbers({6, 4}, 8));
}

}  // namespace modules_test
}  // namespace tessera
