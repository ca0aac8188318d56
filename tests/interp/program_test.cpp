#include "tessera/interp/program.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "tests/support_pure/expect_error.h"

namespace tessera {
namespace program_test {

using test::expect_error;

Program load(const std::string& name) {
  return Program::load("tests/program/data/" + name + ".pt2");
}

at::Tensor tensor_at(const Program::Values& values, size_t i) { return values.at(i).toTensor(); }

TEST(Program, RunsALinearLayerOnWeightsInTheFile) {
  Program program = load("linear");
  ASSERT_EQ(program.inputs().size(), 1U);
  EXPECT_EQ(program.inputs()[0].to_text(), "input: f32 4x3");
  const at::Tensor x = at::randn({4, 3});
  const auto results = program.run({x});
  EXPECT_TRUE(at::equal(tensor_at(results, 0),
                        at::linear(x, program.tensor("weight"), program.tensor("bias"))));
  EXPECT_FALSE(tensor_at(results, 0).requires_grad());
}

TEST(Program, TakesNestedKeywordsAndGivesNamedResults) {
  Program program = load("block");
  const at::Tensor tokens = at::randint(0, 10, {2, 6}, at::kLong);
  const auto results = program.run_named({{"extra.shift", at::zeros({8})}, {"tokens", tokens}});
  ASSERT_EQ(results.size(), 4U);
  EXPECT_EQ(results[0].first, "logits");
  EXPECT_EQ(results[1].first, "best.0");
  EXPECT_EQ(results[3].first, "ramp");
  const auto [best, where] = results[0].second.toTensor().max(-1);
  EXPECT_TRUE(at::equal(results[1].second.toTensor(), best));
  EXPECT_TRUE(at::equal(results[2].second.toTensor(), where));
}

TEST(Program, FormsOfOneModelAgree) {
  Program raw = load("block");
  Program core = load("block_core");
  Program dynamic = load("block_dynamic");
  const at::Tensor tokens = at::randint(0, 10, {2, 6}, at::kLong);
  const at::Tensor shift = at::randn({8});
  const at::Tensor expected = tensor_at(raw.run({tokens, shift}), 0);
  EXPECT_TRUE(at::allclose(tensor_at(core.run({tokens, shift}), 0), expected, 1e-5, 1e-6));
  EXPECT_TRUE(at::equal(tensor_at(dynamic.run({tokens, shift}), 0), expected));
}

TEST(Program, BuffersKeepWhatRunsWriteToThem) {
  for (const char* name : {"block", "block_core"}) {  // in place, and by an output of the graph
    Program program = load(name);
    const at::Tensor tokens = at::zeros({2, 6}, at::kLong);
    for (int run = 1; run <= 3; ++run) {
      program.run({tokens, at::zeros({8})});
      EXPECT_EQ(program.tensor("calls").item<float>(), run) << name;
    }
    EXPECT_EQ(load(name).tensor("calls").item<float>(), 0) << name;
  }
}

TEST(Program, TiedWeightsAreOneTensor) {
  Program program = load("block");
  const at::Tensor embed = program.tensor("embed.weight");
  const at::Tensor head = program.tensor("head.weight");
  EXPECT_EQ(embed.data_ptr(), head.data_ptr());
  at::NoGradGuard no_grad;
  embed.zero_();
  EXPECT_EQ(head.abs().sum().item<float>(), 0);
}

TEST(Program, DynamicSizesTakeOtherShapes) {
  Program program = load("block_dynamic");
  const at::Tensor shift = at::zeros({8});
  for (const auto& shape : std::vector<std::vector<int64_t>>{{1, 6}, {5, 2}, {3, 17}}) {
    const auto results = program.run({at::ones(shape, at::kLong), shift});
    EXPECT_EQ(tensor_at(results, 0).sizes(), at::IntArrayRef({shape[0], shape[1], 10}));
  }
  expect_error<InvalidArgument>(
      [&] {
        program.run({at::ones({2, 500}, at::kLong), shift});
      },
      {"input tokens", "dim 1 is 500", "2 to 128"});
}

TEST(Program, ConstantsAndInfinities) {
  Program program = load("masked");
  const at::Tensor x = at::randn({2, 3});
  const at::Tensor mask = at::tensor({1, 0, 1, 0, 1, 1}).view({2, 3}).to(at::kBool);
  const at::Tensor expected =
      at::where(mask, x, at::full({}, -INFINITY)).softmax(-1) + at::full({1}, 0.5F);
  EXPECT_TRUE(at::equal(tensor_at(program.run({x, mask}), 0), expected));
}

TEST(Program, NonContiguousInputsAndEmptyBatches) {
  Program program = load("linear");
  const at::Tensor x = at::randn({3, 4}).t();
  EXPECT_TRUE(
      at::allclose(tensor_at(program.run({x}), 0), tensor_at(program.run({x.contiguous()}), 0)));
  Program dynamic = load("block_dynamic");
  EXPECT_EQ(tensor_at(dynamic.run({at::ones({0, 6}, at::kLong), at::zeros({8})}), 0).numel(), 0);
}

TEST(Program, RefusesInputsThatDoNotFit) {
  Program program = load("linear");
  const std::string wants = "the program wants f32 4x3 on cpu";
  expect_error<InvalidArgument>(
      [&] {
        program.run({at::zeros({4, 3}, at::kDouble)});
      },
      {"linear.pt2", "input input is Double 4x3", wants});
  expect_error<InvalidArgument>(
      [&] {
        program.run({at::zeros({4, 4})});
      },
      {wants, "dim 1 must be 3"});
  expect_error<InvalidArgument>([&] { program.run({at::zeros({4})}); }, {wants, "dims"});
  expect_error<InvalidArgument>([&] { program.run({int64_t{3}}); }, {wants, "must be a tensor"});
  expect_error<InvalidArgument>([&] { program.run({at::Tensor()}); }, {wants});
  expect_error<InvalidArgument>([&] { program.run(Program::Values()); },
                                {"takes 1 inputs (input: f32 4x3), but 0 were given"});
  expect_error<InvalidArgument>(
      [&] {
        program.run_named({{"x", at::zeros({4, 3})}});
      },
      {"has no input x", "input: f32 4x3"});
  expect_error<InvalidArgument>([&] { program.run_named({}); },
                                {"input input: f32 4x3 is missing"});
  EXPECT_NO_THROW(program.run({at::zeros({4, 3})}));  // an error leaves it usable
}

TEST(Program, RefusesHigherOrderOpsWithTheNode) {
  expect_error<NotSupported>([] { load("branch"); },
                             {"branch.pt2", "models/model.json", "node", "cond", "higher-order"});
}

TEST(Program, ErrorsOfOpsNameTheNode) {
  Program program = load("block");
  const at::Tensor tokens = at::full({2, 6}, 99, at::kLong);  // beyond the vocabulary
  expect_error<InvalidArgument>(
      [&] {
        program.run({tokens, at::zeros({8})});
      },
      {"block.pt2", "(embedding)", "torch.ops.aten.embedding.default"});
}

}  // namespace program_test
}  // namespace tessera
