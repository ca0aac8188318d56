// Shards of another type or on another device, and other tensors in a parameter's place.
#include "tessera/fsdp/convert.h"

#include <gtest/gtest.h>

#include "tessera/base/errors.h"
#include "tests/fsdp/training.h"

namespace tessera::test {
namespace convert_test {

at::Tensor as_float(const at::Tensor& shard) { return shard.to(at::kFloat); }
at::Tensor as_double(const at::Tensor& shard) { return shard.to(at::kDouble); }

/// Trains the twins a step and compares them.
void step_alike(Twins& twins) {
  auto& [mesh, batch, mine, plain, net, alone, optimizer] = twins;
  alone->zero_grad();
  optimizer->zero_grad();
  at::mse_loss(plain->forward(batch.x), batch.y).backward();
  at::mse_loss(net->forward(mine.x), mine.y).backward();
  alone->step();
  optimizer->step();
  EXPECT_EQ(parameters_differ(*net, *plain), "");
  EXPECT_EQ(gathered_memory(mesh).bytes, 0);
}

TEST(ConvertShards, TrainingGoesOnInAnotherTypeAndBack) {
  run_ranks(2, [](int rank) {
    auto twins = make_twins(rank, 2, {});
    for (int step = 0; step < 3; ++step) step_alike(twins);  // groups have been merged
    const auto parameters = twins.net->parameters();
    convert_shards(parameters, as_float);
    for (const at::Tensor& parameter : parameters) {
      EXPECT_EQ(parameter.scalar_type(), at::kFloat);
      EXPECT_EQ(to_local(parameter).scalar_type(), at::kFloat);
      EXPECT_EQ(parameter.grad().scalar_type(), at::kFloat);
    }
    EXPECT_EQ(twins.net->forward(twins.mine.x.to(at::kFloat)).scalar_type(), at::kFloat);
    convert_shards(parameters, as_double);
    for (const at::Tensor& parameter : twins.plain->parameters()) {
      const at::NoGradGuard no_grad;
      parameter.copy_(parameter.to(at::kFloat));  // what the trip has rounded
    }
    for (int step = 0; step < 3; ++step) step_alike(twins);
  });
}

TEST(ConvertShards, SomeParametersOfAGroupMayHaveAnotherType) {
  run_ranks(2, [](int) {
    auto net = make_mlp({6, 5, 3});
    fully_shard(*net, init_device_mesh("dp=2"));
    const auto parameters = net->parameters();
    const at::Tensor before = full_tensor(parameters[2]);
    convert_shards(std::span(&parameters[0], 1), as_float);
    EXPECT_EQ(parameters[0].scalar_type(), at::kFloat);
    EXPECT_EQ(parameters[2].scalar_type(), at::kDouble);
    EXPECT_TRUE(at::equal(full_tensor(parameters[2]), before));
  });
}

TEST(ConvertShards, SetDataIsRefused) {
  run_ranks(2, [](int) {
    auto net = make_mlp({4, 2});
    fully_shard(*net, init_device_mesh("dp=2"));
    EXPECT_THROW(net->to(at::kFloat), NotSupported);
    EXPECT_THROW(convert_shards({{at::ones({2})}}, as_float), InvalidArgument);
    EXPECT_EQ(net->parameters()[0].scalar_type(), at::kDouble);
    net->forward(at::ones({1, 4}, at::kDouble)).sum().backward();
  });
}

TEST(HoldInstead, AnotherTensorIsTheParameter) {
  run_ranks(2, [](int) {
    torch::nn::Linear layer(4, 2);
    fully_shard(*layer, init_device_mesh("dp=2"));
    const at::Tensor held = layer->weight;
    const at::Tensor other = at::zeros({2, 4}).requires_grad_();
    replace_parameter(held, other);
    EXPECT_TRUE(at::equal(full_tensor(other), full_tensor(held)));
    layer->weight = other;
    layer->forward(at::ones({1, 4})).sum().backward();
    EXPECT_TRUE(at::equal(full_tensor(other.grad()), at::ones({2, 4})));
    EXPECT_THROW(replace_parameter(held, at::zeros({4, 2})), InvalidArgument);
  });
}

}  // namespace convert_test
}  // namespace tessera::test
