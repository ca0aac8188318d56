// What a program does to a tensor besides computing with it: copies, casts, saving, modes.
#include <ATen/autocast_mode.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/linear.h>
#include <torch/serialize.h>

#include <sstream>

#include "tessera/base/errors.h"
#include "tessera/dtensor/dtensor.h"
#include "tessera/dtensor/tensor/sharded_tensor.h"
#include "tests/support/parts.h"
#include "tests/support/ranks.h"

namespace tessera {
namespace copies_test {

using comm::init_device_mesh;
using test::run_ranks;
using test::whole_numbers;

TEST(Copies, CloneDetachAndDataKeepTheSharding) {
  run_ranks(2, [](int) {
    const DeviceMesh mesh = init_device_mesh("tp=2");
    const at::Tensor full = whole_numbers({5, 3});
    at::Tensor x = distribute_tensor(full, mesh, {Shard(0)});
    x.set_requires_grad(true);
    EXPECT_TRUE(x.requires_grad() && x.is_leaf());

    at::Tensor copy = x.detach().clone();
    EXPECT_EQ(sharding(copy), sharding(x));
    copy.mul_(2);
    EXPECT_TRUE(at::equal(full_tensor(x.detach()), full)) << "a clone shares nothing";

    const at::Tensor detached = x.detach();
    EXPECT_FALSE(detached.requires_grad());
    EXPECT_TRUE(to_local(detached).is_alias_of(to_local(x.detach())));
    const at::Tensor data = x.data();
    EXPECT_FALSE(data.requires_grad());
    EXPECT_EQ(sharding(data), sharding(x));
    data.add_(1);
    EXPECT_TRUE(at::equal(full_tensor(x.detach()), full + 1)) << "data() shares its values";
  });
}

TEST(Copies, CastsKeepTheSharding) {
  run_ranks(2, [](int) {
    const DeviceMesh mesh = init_device_mesh("tp=2");
    const at::Tensor full = whole_numbers({5, 3});
    const at::Tensor x = distribute_tensor(full, mesh, {Shard(0)});
    const at::Tensor small = x.to(at::kBFloat16);
    EXPECT_EQ(small.scalar_type(), at::kBFloat16);
    EXPECT_EQ(sharding(small).placements_text(), "S0");
    EXPECT_TRUE(at::equal(full_tensor(small), full.to(at::kBFloat16)));
    EXPECT_TRUE(x.to(at::kCPU).is_same(x));
    EXPECT_TRUE(at::equal(full_tensor(x.to(at::kCPU, at::kFloat)), full.to(at::kFloat)));
  });
}

TEST(Copies, ATensorBecomesShardedForAllItsHandles) {
  run_ranks(2, [](int) {
    const DeviceMesh mesh = init_device_mesh("tp=2");
    const at::Tensor full = whole_numbers({4, 3});
    at::Tensor parameter = full.clone().requires_grad_();
    const at::Tensor handle = parameter;
    parameter.set_data(distribute_tensor(full, mesh, {Shard(0)}));
    EXPECT_TRUE(is_dtensor(handle));
    EXPECT_TRUE(handle.requires_grad());
    (handle * 3).sum().backward();
    EXPECT_TRUE(at::equal(full_tensor(parameter.grad()), at::full({4, 3}, 3.0, at::kDouble)));
  });
}

TEST(Copies, ModulesWithShardedParametersAreCastAndCloned) {
  run_ranks(2, [](int) {
    const DeviceMesh mesh = init_device_mesh("tp=2");
    torch::nn::Linear layer(torch::nn::LinearOptions(3, 4).bias(false));
    const at::Tensor full = whole_numbers({4, 3}).to(at::kFloat);
    layer->weight.set_data(distribute_tensor(full, mesh, {Shard(0)}));
    const auto copy = std::dynamic_pointer_cast<torch::nn::LinearImpl>(layer->clone());
    EXPECT_EQ(sharding(copy->weight), sharding(layer->weight));
    layer->to(at::kDouble);
    EXPECT_EQ(layer->weight.scalar_type(), at::kDouble);
    EXPECT_TRUE(at::equal(full_tensor(layer->weight.detach()), full.to(at::kDouble)));
    EXPECT_TRUE(at::equal(full_tensor(copy->weight.detach()), full));
  });
}

/// The text of what `body` throws.
template <class Body>
std::string error_of(Body body) {
  try {
    body();
  } catch (const std::exception& error) {
    return error.what();
  }
  return "no error";
}

TEST(Copies, SavingPointsToCheckpoints) {
  run_ranks(2, [](int) {
    const DeviceMesh mesh = init_device_mesh("tp=2");
    const at::Tensor x = distribute_tensor(whole_numbers({4, 3}), mesh, {Shard(0)});
    std::ostringstream stream;
    EXPECT_NE(error_of([&] { torch::save(x, stream); }).find("checkpoint"), std::string::npos);
    torch::nn::Linear layer(3, 4);
    dtensor::become(layer->weight, to_local(x), sharding(x));
    const std::string error = error_of([&] { torch::save(layer, stream); });
    EXPECT_NE(error.find("checkpoint"), std::string::npos) << error;
    EXPECT_NE(error_of([&] { (void)layer->weight.data_ptr<double>(); }).find("to_local"),
              std::string::npos);
  });
}

TEST(Copies, LoadingIntoAShardedTensorIsRefused) {
  run_ranks(2, [](int) {
    const DeviceMesh mesh = init_device_mesh("tp=2");
    std::stringstream stream;
    torch::save(torch::nn::Linear(3, 4), stream);
    torch::nn::Linear layer(3, 4);
    const at::Tensor x = distribute_tensor(whole_numbers({4, 3}).to(at::kFloat), mesh, {Shard(0)});
    layer->weight.set_data(x);
    const std::string error = error_of([&] { torch::load(layer, stream); });
    EXPECT_NE(error.find("checkpoint"), std::string::npos) << error;
    EXPECT_TRUE(is_dtensor(layer->weight)) << error;
    EXPECT_TRUE(at::equal(full_tensor(layer->weight.detach()), full_tensor(x)));
  });
}

/// Turns autocast to bfloat16 on for the calling thread.
struct AutocastOn {
  AutocastOn() { at::autocast::set_autocast_enabled(at::kCPU, true); }
  ~AutocastOn() {
    at::autocast::clear_cache();
    at::autocast::set_autocast_enabled(at::kCPU, false);
  }
};

TEST(Copies, AutocastReachesShardedTensors) {
  run_ranks(2, [](int) {
    const DeviceMesh mesh = init_device_mesh("tp=2");
    const at::Tensor input = whole_numbers({4, 6}).to(at::kFloat);
    const at::Tensor weight = whole_numbers({8, 6}, 2).to(at::kFloat);
    const at::Tensor x = distribute_tensor(input, mesh, {Replicate()});
    const at::Tensor w = distribute_tensor(weight, mesh, {Shard(0)}).requires_grad_();
    at::Tensor want;
    at::Tensor got;
    {
      const AutocastOn autocast;
      want = at::linear(input, weight);
      got = at::linear(x, w);
    }
    EXPECT_EQ(got.scalar_type(), at::kBFloat16);
    EXPECT_EQ(sharding(got).placements_text(), "S1");
    EXPECT_TRUE(at::equal(full_tensor(got.detach()), want));
    got.sum().backward();
    EXPECT_EQ(w.grad().scalar_type(), at::kFloat) << "as the parameter";
    EXPECT_EQ(sharding(w.grad()).placements_text(), "S0");
  });
}

TEST(Copies, InferenceModeComputesAndViews) {
  run_ranks(2, [](int) {
    const DeviceMesh mesh = init_device_mesh("tp=2");
    const at::Tensor full = whole_numbers({4, 6});
    const at::Tensor before = distribute_tensor(full, mesh, {Shard(0)});
    const c10::InferenceMode inference;
    const at::Tensor x = distribute_tensor(full, mesh, {Shard(0)});
    const at::Tensor y = at::mm(x, x.t()) + at::mm(before, before.t());
    EXPECT_TRUE(y.is_inference());
    EXPECT_TRUE(at::equal(full_tensor(y), 2 * at::mm(full, full.t())));
    x.view({2, 2, 6}).mul_(2);
    EXPECT_TRUE(at::equal(full_tensor(x), full * 2));
    EXPECT_TRUE(at::equal(full_tensor(redistribute(x, {Shard(1)})), full * 2));
  });
}

}  // namespace copies_test
}  // namespace tessera
