// Plans: which modules they name, and what is wrong with them.
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/dropout.h>

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

}  // namespace plan_test
}  // namespace tessera::test
