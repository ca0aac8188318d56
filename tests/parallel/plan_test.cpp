// Plans: which modules they name, and what is wrong with them.
#include <ATen/ops/addmm.h>
#include <ATen/ops/embedding.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/zeros.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/dropout.h>
#include <torch/nn/modules/embedding.h>

#include "tessera/base/errors.h"
#include "tests/parallel/parallel_cases.h"

namespace tessera::test {
namespace plan_test {

/// Calls with a bad plan, which must be an error that has all of `texts`, and change nothing.
void expect_error(const ParallelPlan& plan, const std::vector<std::string>& texts, int ranks = 2,
                  std::function<std::shared_ptr<torch::nn::Module>()> make = {}) {
  test::run_ranks(ranks, [&](int) {
    const DeviceMesh mesh = comm::init_device_mesh("tp=" + std::to_string(ranks));
    const auto module = make ? make() : blocks::GptBlock(kWidth, kHeads, kHidden).ptr();
    std::string said;
    try {
      parallelize_module(*module, mesh, plan);
    } catch (const InvalidArgument& error) {
      said = error.what();
    }
    for (const auto& text : texts)
      EXPECT_NE(said.find(text), std::string::npos) << text << ": " << said;
    for (const auto& item : module->named_parameters()) EXPECT_FALSE(is_dtensor(item.value()));
  });
}

TEST(Plan, APathThatMatchesNothingIsAnErrorWithNearNames) {
  expect_error({{"mlp.up", ColwiseParallel()}, {"mlp.dwn", RowwiseParallel()}},
               {"'mlp.dwn'", "nearest: mlp.down"});
}

TEST(Plan, AModuleWithoutAWeightIsAnError) {
  expect_error({{"mlp", ColwiseParallel()}},
               {"ColwiseParallel() for mlp", "no parameter 'weight'", "up.weight"});
  expect_error({{"attention_norm", ColwiseParallel()}}, {"no output features"});
  expect_error({{"attention_norm", RowwiseParallel()}}, {"no input features"});
  expect_error({{"mlp.up", SequenceParallel()}}, {"is for LayerNorm"});
}

TEST(Plan, SparseGradientsAreAnError) {
  const auto make = [] {
    torch::nn::Sequential net(torch::nn::Embedding(torch::nn::EmbeddingOptions(8, 4).sparse(true)));
    return net.ptr();
  };
  expect_error({{"0", RowwiseParallel()}}, {"sparse(false)"}, 2, make);
}

TEST(Plan, HeadsAndPartsMustDivide) {
  expect_error({{"attention.qkv", ColwiseParallel({.parts = 3, .heads = 9})}},
               {"24 outputs are not 9 equal heads"});
  expect_error({{"attention.qkv", ColwiseParallel({.parts = 7})}}, {"72 outputs are not 7"});
  expect_error({{"attention.out", ColwiseParallel({.heads = 8})}},
               {"8 heads cannot be divided over 3 ranks"}, 3);
  expect_error({{"attention.qkv", ColwiseParallel({.parts = 3, .heads = 2})}},
               {"2 heads are fewer than the 4 ranks"}, 4);
}

TEST(Plan, TwoEntriesForAModuleAreAnErrorUnlessOneIsItsFullPath) {
  expect_error({{"mlp.*", ColwiseParallel()}, {"*.down", RowwiseParallel()}},
               {"mlp.down", "also has ColwiseParallel()"});
  test::run_ranks(2, [](int) {
    const DeviceMesh mesh = comm::init_device_mesh("tp=2");
    blocks::Mlp net(kWidth, kHidden);
    parallelize_module(*net, mesh, {{"down", RowwiseParallel()}, {"*", ColwiseParallel()}});
    EXPECT_EQ(placements(net->down->weight)[0], Shard(1));
    EXPECT_EQ(placements(net->up->weight)[0], Shard(0));
  });
}

TEST(Plan, AMeshOfSeveralAxesNeedsOneToSplitOver) {
  test::run_ranks(4, [](int) {
    const DeviceMesh mesh = comm::init_device_mesh("dp=2,tp=2");
    blocks::Mlp net(kWidth, kHidden);
    EXPECT_THROW(parallelize_module(*net, mesh, {{"up", ColwiseParallel()}}), InvalidArgument);
    parallelize_module(*net, mesh, {{"up", ColwiseParallel()}}, {.axis = "tp"});
    EXPECT_EQ(sharding(net->up->weight).placements_text(), "R,S0");
    EXPECT_EQ(sharding(net->down->weight).placements_text(), "R,R");
  });
}

TEST(Plan, DropoutKeepsTheSequenceSharded) {
  test::run_ranks(2, [](int) {
    const DeviceMesh mesh = comm::init_device_mesh("tp=2");
    torch::nn::Sequential net(torch::nn::Linear(8, 8), torch::nn::Dropout(0.5));
    parallelize_module(
        *net, mesh,
        {{"0", RowwiseParallel({.output_layout = Shard(1)})}, {"1", SequenceParallel()}});
    const at::Tensor x = distribute_tensor(at::ones({2, 6, 8}), mesh, {Replicate()});
    EXPECT_EQ(placements(net->forward(x))[0], Shard(1));
  });
}

/// Modules that are not libtorch's, by the op that uses their weight.
struct OwnLayerImpl : torch::nn::Module {
  using Use = std::function<at::Tensor(const at::Tensor& x, const at::Tensor& weight,
                                       const at::Tensor& bias)>;
  OwnLayerImpl(int64_t in, int64_t out, Use how) : use(std::move(how)) {
    weight = register_parameter("weight", at::zeros({in, out}, at::kDouble));
    bias = register_parameter("bias", at::zeros({out}, at::kDouble));
  }
  at::Tensor forward(const at::Tensor& x) { return use(x, weight, bias); }
  Use use;
  at::Tensor weight, bias;
};
TORCH_MODULE(OwnLayer);

struct OwnModelImpl : torch::nn::Module {
  OwnModelImpl()
      : words(50, 6, [](auto& x, auto& w, auto& b) { return at::embedding(w, x) + b; }),
        up(6, 8, [](auto& x, auto& w, auto& b) { return at::addmm(b, x, w).tanh(); }),
        down(8, 6, [](auto& x, auto& w, auto& b) { return at::mm(x, w) + b; }) {
    register_module("words", words);
    register_module("up", up);
    register_module("down", down);
  }
  at::Tensor forward(const at::Tensor& x) { return down(up(words(x))); }
  OwnLayer words, up, down;
};
TORCH_MODULE(OwnModel);

/// One all_reduce for the embedding's rows and one for the second product; mm adds its bias itself.
TEST(Plan, ModulesOfOnesOwnAreSplitByTheOpsThatUseTheirWeight) {
  const auto make = [] {
    OwnModel net;
    set_parameters(*net, 3);
    return Instance{net.ptr(), [net](const auto& x) mutable { return net->forward(x[0]); }};
  };
  const at::Tensor tokens = test_numbers({5}, 1, 50).to(at::kLong);
  const at::Tensor target = test_numbers({5, 6}, 2);
  const RunResults expected = train(make(), tokens, target);
  for (const int ranks : {2, 3}) {
    test::run_ranks(ranks, [&](int) {
      const DeviceMesh mesh = comm::init_device_mesh("tp=" + std::to_string(ranks));
      const Instance instance = make();
      parallelize_module(*instance.module, mesh,
                         {{"words", RowwiseParallel({.in_by_out = true})},
                          {"up", ColwiseParallel({.in_by_out = true})},
                          {"down", RowwiseParallel({.in_by_out = true})}});
      const auto parameters = instance.module->named_parameters();
      EXPECT_EQ(placements(parameters["words.weight"])[0], Shard(0));
      EXPECT_EQ(placements(parameters["up.weight"])[0], Shard(1));
      const at::Tensor x = distribute_tensor(tokens, mesh, {Replicate()});
      comm::Recorder recorder(*comm::current_world());
      instance.call({x});
      EXPECT_EQ(comm::expect_comm(recorder, "2 all_reduce on tp, 0 implicit"), "");
      recorder.stop();
      expect_same(train(instance, x, distribute_tensor(target, mesh, {Replicate()})), expected);
    });
  }
}

/// Plain indexes; libtorch makes the offsets of the bags itself.
TEST(Plan, BagsOfEmbeddingsAreSplitByFeatures) {
  const auto make = [] {
    torch::nn::EmbeddingBag bag(torch::nn::EmbeddingBagOptions(12, 6).mode(torch::kSum));
    set_parameters(*bag, 3);
    return Instance{bag.ptr(), [bag](const auto& x) mutable { return bag->forward(x[0]); }};
  };
  const at::Tensor tokens = test_numbers({4, 3}, 1, 12).to(at::kLong);
  const at::Tensor target = test_numbers({4, 6}, 2);
  const RunResults expected = train(make(), tokens, target);
  for (const auto& style :
       {ColwiseParallel(), ColwiseParallel({.output_layout = Replicate()}), RowwiseParallel()}) {
    test::run_ranks(2, [&](int) {
      const DeviceMesh mesh = comm::init_device_mesh("tp=2");
      const Instance instance = make();
      parallelize_module(*instance.module, mesh, {{"", style}});
      EXPECT_EQ(placements(instance.module->parameters()[0])[0],
                Shard(style.kind == parallel::Style::Kind::colwise ? 1 : 0));
      expect_same(train(instance, tokens, distribute_tensor(target, mesh, {Replicate()})),
                  expected);
    });
  }
}

/// A convolution by output channels, then one by input channels.
TEST(Plan, ConvolutionsAreSplitByChannels) {
  const auto make = [] {
    torch::nn::Sequential net(torch::nn::Conv2d(torch::nn::Conv2dOptions(3, 8, 3).padding(1)),
                              torch::nn::Conv2d(torch::nn::Conv2dOptions(8, 4, 3).padding(1)));
    return Instance{net.ptr(), [net](const auto& x) mutable { return net->forward(x[0]); }};
  };
  const at::Tensor x = test_numbers({2, 3, 6, 5}, 1);
  const at::Tensor target = test_numbers({2, 4, 6, 5}, 2);
  const Instance alone = make();
  set_parameters(*alone.module, 3);
  const RunResults expected = train(alone, x, target);
  test::run_ranks(2, [&](int) {
    const DeviceMesh mesh = comm::init_device_mesh("tp=2");
    const Instance instance = make();
    set_parameters(*instance.module, 3);
    parallelize_module(*instance.module, mesh,
                       {{"0", ColwiseParallel()}, {"1", RowwiseParallel()}});
    expect_same(train(instance, distribute_tensor(x, mesh, {Replicate()}),
                      distribute_tensor(target, mesh, {Replicate()})),
                expected);
  });
}

/// A plain input of a rowwise module is this rank's channels.
TEST(Plan, APlainInputOfARowwiseConvolutionIsChannels) {
  torch::nn::Conv2d whole(torch::nn::Conv2dOptions(8, 4, 3));
  set_parameters(*whole, 3);
  const at::Tensor x = test_numbers({2, 8, 6, 5}, 1);
  const at::Tensor expected = whole(x).detach();
  test::run_ranks(2, [&](int rank) {
    torch::nn::Conv2d own(torch::nn::Conv2dOptions(8, 4, 3));
    set_parameters(*own, 3);
    parallelize_module(*own, comm::init_device_mesh("tp=2"), {{"", RowwiseParallel()}});
    const at::Tensor y = own(x.chunk(2, 1)[static_cast<size_t>(rank)]);
    EXPECT_LT((full_tensor(y) - expected).abs().max().item<double>(), 1e-9);
  });
}

}  // namespace plan_test
}  // namespace tessera::test
