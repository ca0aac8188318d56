#pragma once

#include <ATen/ops/cos.h>
#include <ATen/ops/mse_loss.h>
#include <ATen/ops/sin.h>
#include <gtest/gtest.h>
#include <torch/optim/sgd.h>

#include "examples/blocks/gpt.h"
#include "examples/blocks/llama.h"
#include "tessera/dtensor/dtensor.h"
#include "tessera/observe/expect.h"
#include "tessera/observe/recorder.h"
#include "tessera/parallel/parallelize_module.h"
#include "tests/support/ranks.h"
#include "tests/support/training.h"

/// Blocks of examples/blocks trained on one rank, and by a plan on several: outputs, gradients and
/// parameters after ten steps must be equal to 1e-9, and each collective is counted.
namespace tessera::test {

constexpr int64_t kBatch = 2, kPlaces = 7, kWidth = 24, kHeads = 12, kHidden = 40;

struct BlockCase {
  std::string name;
  std::function<Instance()> make;
  std::function<ParallelPlan(bool by_sequence)> plan;
  int blocks = 1;  ///< that have an all_reduce each: the MLP has one, attention and MLP two
};

/// Everything a run produces, whole: the first output, all gradients of the first step, and all
/// parameters after ten.
using RunResults = std::map<std::string, at::Tensor>;

inline at::Tensor whole(const at::Tensor& tensor) {
  return (is_dtensor(tensor) ? full_tensor(tensor) : tensor).detach().clone();
}

/// Ten steps of plain SGD. `step` is called after the first step.
inline RunResults train(const Instance& instance, const at::Tensor& x, const at::Tensor& target) {
  RunResults out;
  torch::optim::SGD optimizer(instance.module->parameters(), 0.05);
  for (int step = 0; step < 10; ++step) {
    optimizer.zero_grad();
    const at::Tensor y = instance.call({x});
    at::mse_loss(y, target).backward();
    if (step == 0) {
      out.emplace("output", whole(y));
      for (const auto& item : instance.module->named_parameters()) {
        out.emplace("gradient of " + item.key(), whole(item.value().grad()));
      }
    }
    optimizer.step();
  }
  for (const auto& item : instance.module->named_parameters()) {
    out.emplace(item.key(), whole(item.value()));
  }
  return out;
}

inline void expect_same(const RunResults& got, const RunResults& expected) {
  ASSERT_EQ(got.size(), expected.size());
  for (const auto& [name, value] : expected) {
    const double apart = (got.at(name) - value).abs().max().item<double>();
    EXPECT_LT(apart, 1e-9) << name;
  }
}

}  // namespace tessera::test
