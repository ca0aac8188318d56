// What fully_shard refuses, with a reason, before anything is changed or sent.
#include <torch/nn/modules/embedding.h>

#include "tessera/base/errors.h"
#include "tessera/module/distribute_module.h"
#include "tests/fsdp/training.h"

namespace tessera {
namespace refusals_test {

using namespace test;

/// The call throws an error that says `reason`, sends nothing, and leaves the module plain.
void refused(torch::nn::Module& module, const std::string& reason,
             const std::function<void()>& call) {
  std::vector<bool> before;
  for (const at::Tensor& parameter : module.parameters()) before.push_back(is_dtensor(parameter));
  const Recorder recorder(*comm::current_world());
  try {
    call();
    ADD_FAILURE() << "not refused: " << reason;
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find(reason), std::string::npos) << error.what();
  }
  EXPECT_EQ(recorder.count(), 0) << recorder.to_text();
  size_t i = 0;
  for (const at::Tensor& parameter : module.parameters()) {
    EXPECT_EQ(is_dtensor(parameter), before[i++]) << reason;
  }
}

TEST(FullyShardRefuses, ParametersItCannotHold) {
  run_ranks(2, [](int) {
    const DeviceMesh mesh = init_device_mesh("dp=2");
    const auto shard = [&](torch::nn::Module& module, const std::string& reason) {
      refused(module, reason, [&] { fully_shard(module, mesh); });
    };
    // Each time the first parameter is fine: it must not have been taken.
    torch::nn::Linear transposed(3, 4);
    transposed->bias.set_data(at::ones({4, 2}).t()[0].expand({4}));
    shard(*transposed, "bias is not contiguous");
    shard(*transposed, "FSDP does not support non-contiguous parameters");  // what PyTorch says
    auto with_gradient = make_mlp({4, 2});
    with_gradient->parameters()[1].mutable_grad() = at::ones({2}, at::kDouble);
    shard(*with_gradient, "0.bias has a gradient");
    torch::nn::Linear computed(3, 4);
    const at::Tensor leaf = at::ones({4}).requires_grad_();
    computed->register_parameter("product", leaf * 2);
    shard(*computed, "product is computed by autograd");
    torch::nn::Linear view(3, 4);
    view->register_parameter("row", at::ones({4, 4})[0]);
    shard(*view, "row is a view");
    torch::nn::Linear half_on_meta(3, 4);
    half_on_meta->register_parameter("scale", at::empty({4}, at::kMeta));
    shard(*half_on_meta, "a group is on one device");
  });
}

TEST(FullyShardRefuses, MeshesItCannotUse) {
  run_ranks(4, [](int rank) {
    auto net = make_mlp({4, 2});
    refused(*net, "a mesh of real ranks", [&] { fully_shard(*net, DeviceMesh::parse("dp=4")); });
    refused(*net, "a mesh of real ranks", [&] { fully_shard(*net, DeviceMesh()); });
    refused(*net, "a mesh of real ranks", [&] { replicate(*net, DeviceMesh::parse("dp=4")); });
    const DeviceMesh cube = init_device_mesh("a=1,b=2,c=2");
    refused(*net, "one axis to shard over, or two", [&] { fully_shard(*net, cube); });
    refused(*net, "a ReplicateMesh has 1 axis, a=1,b=2,c=2 has 3", [&] { replicate(*net, cube); });
    const DeviceMesh two = init_device_mesh("dp=2");
    if (rank >= 2) {
      refused(*net, "of which this rank is no part", [&] { fully_shard(*net, two); });
    }
  });
}

TEST(FullyShardRefuses, WhatIsHeldOrPlacedAlready) {
  run_ranks(4, [](int) {
    const DeviceMesh mesh = init_device_mesh("dp=2,tp=2");
    auto net = make_mlp({4, 5, 2});
    fully_shard(*net, mesh["dp"]);
    refused(*net, "twice on one module", [&] { fully_shard(*net, mesh["dp"]); });
    refused(*net, "twice on one module", [&] { fully_shard(*net, mesh["tp"]); });
    refused(*net, "twice on one module", [&] { replicate(*net, mesh["dp"]); });
    const std::vector<at::Tensor> list = net->parameters();
    refused(*net, "belongs to a group already", [&] { fully_shard(list, mesh["dp"]); });
    auto over_dp = make_mlp({4, 2});
    distribute_(over_dp->parameters()[0], mesh["dp"], {Shard(0)});
    refused(*over_dp, "already placed on axis dp", [&] { fully_shard(*over_dp, mesh["dp"]); });
    auto partial = make_mlp({4, 2});
    const at::Tensor sum = from_local(at::ones({2}, at::kDouble), mesh["tp"], {Partial()});
    auto* layer = layers_of(partial)[0];
    layer->register_parameter("sum", sum.detach());
    refused(*partial, "redistribute it to Shard or Replicate",
            [&] { fully_shard(*partial, mesh["dp"]); });
  });
}

/// Tensor-parallel parameters of another world: threads of another call of run_ranks, processes.
TEST(FullyShardRefuses, ParametersOfAnotherWorld) {
  auto net = make_mlp({4, 2});
  run_ranks(1,
            [&](int) { distribute_(net->parameters()[0], init_device_mesh("tp=1"), {Shard(0)}); });
  run_ranks(1, [&](int) {
    const DeviceMesh mesh = init_device_mesh("dp=1");
    refused(*net, "another world", [&] { fully_shard(*net, mesh); });
  });
}

TEST(FullyShardRefuses, OptionsThatMeanNothing) {
  run_ranks(2, [](int) {
    const DeviceMesh mesh = init_device_mesh("dp=2");
    auto net = make_mlp({4, 2});
    const auto with = [&](const std::string& reason, const FullyShardOptions& options) {
      refused(*net, reason, [&] { fully_shard(*net, mesh, options); });
    };
    with("shard_dim gave 3", {.shard_dim = [](const std::string&, const at::Tensor&) {
           return std::optional<int>(3);
         }});
    with("gradient_divide_factor is 0", {.gradient_divide_factor = 0});
    with("gradient_predivide_factor is -1", {.gradient_predivide_factor = -1});
    with("not a floating-point type", {.mp_policy = {.param_dtype = at::kInt}});
    with("not a floating-point type", {.mp_policy = {.reduce_dtype = at::kLong}});
    with("output_dtype", {.mp_policy = {.output_dtype = at::kFloat}});
  });
}

}  // namespace refusals_test
}  // namespace tessera
