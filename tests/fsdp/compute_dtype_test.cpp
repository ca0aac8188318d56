// Parameters of a bfloat16 policy report what they compute in while modules compute: C++ modules
// that read the dtype of their weights work unmodified.
#include "tessera/fsdp/compute_dtype.h"

#include <gtest/gtest.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/instancenorm.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/rnn.h>
#include <torch/optim/adamw.h>
#include <torch/types.h>

#include "tessera/comm/threads.h"
#include "tessera/fsdp/sharded_module.h"
#include "tessera/module/state.h"
#include "tests/fsdp/recompute.h"
#include "tests/support/training.h"

namespace tessera {
namespace compute_dtype_test {

using comm::init_device_mesh;
using comm::run_ranks;

const FullyShardOptions kLow = {
    .mp_policy = {.param_dtype = at::kBFloat16, .reduce_dtype = at::kFloat}};

struct ConvolutionsImpl : torch::nn::Module {
  ConvolutionsImpl() {
    one = register_module("one", torch::nn::Conv1d(torch::nn::Conv1dOptions(2, 4, 3).padding(1)));
    two = register_module("two", torch::nn::Conv2d(torch::nn::Conv2dOptions(4, 2, 1)));
  }
  at::Tensor forward(const at::Tensor& x) {
    return two(one(x.view({-1, 2, 4})).unsqueeze(-1)).flatten(1);
  }
  torch::nn::Conv1d one{nullptr};
  torch::nn::Conv2d two{nullptr};
};
TORCH_MODULE(Convolutions);

struct CastsToWeightImpl : torch::nn::Module {
  CastsToWeightImpl() { layer = register_module("layer", torch::nn::Linear(8, 8)); }
  at::Tensor forward(const at::Tensor& x) {
    return layer((x.to(at::kFloat) * 0.5).to(layer->weight.scalar_type()));
  }
  torch::nn::Linear layer{nullptr};
};
TORCH_MODULE(CastsToWeight);

struct T5NormImpl : torch::nn::Module {
  T5NormImpl() {
    weight = register_parameter("weight", at::ones({8}));
    out = register_module("out", torch::nn::Linear(8, 8));
  }
  at::Tensor forward(at::Tensor x) {
    x = x * at::rsqrt(x.to(at::kFloat).square().mean({-1}, true) + 1e-6);
    if (weight.scalar_type() != at::kFloat) x = x.to(weight.scalar_type());
    return out(weight * x);
  }
  at::Tensor weight;
  torch::nn::Linear out{nullptr};
};
TORCH_MODULE(T5Norm);

struct ExpertsImpl : torch::nn::Module {
  ExpertsImpl() { weight = register_parameter("weight", at::ones({2, 8, 8})); }
  at::Tensor forward(const at::Tensor& x) {
    at::Tensor out = at::zeros_like(x);
    for (int64_t expert = 0; expert < 2; ++expert) {
      const at::Tensor rows = at::arange(expert, x.size(0), 2);
      const at::Tensor in = x.index_select(0, rows).to(at::kFloat).to(weight.scalar_type());
      out = out.index_add(0, rows, at::linear(in, weight[expert]).to(x.scalar_type()));
    }
    return out;
  }
  at::Tensor weight;
};
TORCH_MODULE(Experts);

struct RecurrentImpl : torch::nn::Module {
  RecurrentImpl() { layer = register_module("layer", torch::nn::LSTM(4, 4)); }
  at::Tensor forward(const at::Tensor& x) {
    return std::get<0>(layer(x.view({-1, 2, 4}))).flatten(1);
  }
  torch::nn::LSTM layer{nullptr};
};
TORCH_MODULE(Recurrent);

struct NormalizationsImpl : torch::nn::Module {
  NormalizationsImpl() {
    batch = register_module("batch", torch::nn::BatchNorm2d(2));
    const auto options = torch::nn::InstanceNorm1dOptions(2).affine(true).track_running_stats(true);
    instance = register_module("instance", torch::nn::InstanceNorm1d(options));
  }
  at::Tensor forward(const at::Tensor& x) {
    return instance(batch(x.view({-1, 2, 2, 2})).flatten(2)).flatten(1);
  }
  torch::nn::BatchNorm2d batch{nullptr};
  torch::nn::InstanceNorm1d instance{nullptr};
};
TORCH_MODULE(Normalizations);

struct CompositesImpl : torch::nn::Module {
  CompositesImpl() {
    query = register_parameter("query", at::ones({1, 2, 4}));
    scale = register_parameter("scale", at::ones({8}));
    slope = register_module("slope", torch::nn::PReLU());
    pair = register_module("pair", torch::nn::Bilinear(4, 4, 8));
  }
  at::Tensor forward(const at::Tensor& given) {
    const at::Tensor x = slope(given).view({-1, 2, 4});
    const at::Tensor seen = at::scaled_dot_product_attention(query.expand_as(x), x, x);
    return at::rms_norm(pair(seen.select(1, 0), seen.select(1, 1)), {8}, scale);
  }
  at::Tensor query;
  at::Tensor scale;
  torch::nn::PReLU slope{nullptr};
  torch::nn::Bilinear pair{nullptr};
};
TORCH_MODULE(Composites);

using Forward = std::function<at::Tensor(const at::Tensor&)>;

at::Tensor batch() { return at::linspace(-1, 1, 48).view({6, 8}); }

/// Of three steps.
std::vector<double> losses(const Forward& forward, const std::vector<at::Tensor>& parameters) {
  torch::optim::AdamW optimizer(parameters, torch::optim::AdamWOptions(0.05));
  std::vector<double> out;
  for (int step = 0; step < 3; ++step) {
    optimizer.zero_grad();
    const at::Tensor loss = forward(batch()).to(at::kFloat).square().mean();
    loss.backward();
    for (const at::Tensor& parameter : parameters) {
      EXPECT_EQ(parameter.scalar_type(), at::kFloat);
      EXPECT_EQ(parameter.grad().scalar_type(), at::kFloat);
    }
    optimizer.step();
    out.push_back(loss.item<double>());
  }
  return out;
}

void expect_close(const std::vector<double>& got, const std::vector<double>& want) {
  for (size_t i = 0; i < want.size(); ++i) EXPECT_NEAR(got[i], want[i], 0.05) << "step " << i;
}

template <class Model>
Model made() {
  Model model;
  const at::NoGradGuard no_grad;
  int64_t seed = 1;
  for (at::Tensor& parameter : model->parameters()) {
    parameter.copy_(at::linspace(-0.5, 0.5, parameter.numel()).view_as(parameter) +
                    0.05 * static_cast<double>(seed++));
  }
  return model;
}

template <class Model>
class ComputeDtype : public testing::Test {
 protected:
  std::vector<double> wanted() {
    Model plain = made<Model>();
    return losses([&](const at::Tensor& x) { return plain->forward(x); }, plain->parameters());
  }
};

using Models = testing::Types<Convolutions, CastsToWeight, T5Norm, Experts, Recurrent,
                              Normalizations, Composites>;
TYPED_TEST_SUITE(ComputeDtype, Models);

TYPED_TEST(ComputeDtype, WhatFullyShardReturnsComputesAsInFullPrecision) {
  const auto want = this->wanted();
  run_ranks(2, [&](int) {
    auto net = fully_shard(made<TypeParam>(), init_device_mesh("dp=2"), kLow);
    expect_close(losses([&](const at::Tensor& x) { return net(x); }, net->parameters()), want);
    const at::NoGradGuard no_grad;
    net->eval();
    EXPECT_EQ(net(batch()).size(0), 6);
  });
}

TYPED_TEST(ComputeDtype, AGuardDoesTheSame) {
  const auto want = this->wanted();
  run_ranks(2, [&](int) {
    TypeParam model = made<TypeParam>();
    fully_shard(*model, init_device_mesh("dp=2"), kLow);
    const auto forward = [&](const at::Tensor& x) {
      const ComputeDtypeGuard guard(*model);
      return model->forward(x.to(at::kBFloat16));
    };
    expect_close(losses(forward, model->parameters()), want);
  });
}

TYPED_TEST(ComputeDtype, WhatIsRecomputedSeesTheSame) {
  const auto want = this->wanted();
  run_ranks(2, [&](int) {
    auto net = fully_shard(made<TypeParam>(), init_device_mesh("dp=2"), kLow);
    const test::Forward inner = [&](const at::Tensor& x) { return net(x); };
    const auto forward = [&](const at::Tensor& x) {
      return test::Recompute::apply(x.detach().requires_grad_(), &inner);
    };
    expect_close(losses(forward, net->parameters()), want);
  });
}

template <class Model>
class ComputeDtypeWithoutGuard : public ComputeDtype<Model> {};
using CheckedInOps = testing::Types<Convolutions, Recurrent, Normalizations, Composites>;
TYPED_TEST_SUITE(ComputeDtypeWithoutGuard, CheckedInOps);

TYPED_TEST(ComputeDtypeWithoutGuard, OpsThatCompareDtypesNeedNone) {
  const auto want = this->wanted();
  run_ranks(2, [&](int) {
    TypeParam model = made<TypeParam>();
    fully_shard(*model, init_device_mesh("dp=2"), kLow);
    const auto forward = [&](const at::Tensor& x) { return model->forward(x.to(at::kBFloat16)); };
    expect_close(losses(forward, model->parameters()), want);
  });
}

TEST(ComputeDtypeGuard, NestsAndEndsWithItsScope) {
  run_ranks(2, [](int) {
    const DeviceMesh mesh = init_device_mesh("dp=2");
    CastsToWeight low;
    torch::nn::Linear full(3, 3);
    fully_shard(*low, mesh, kLow);
    fully_shard(*full, mesh);
    const at::Tensor& weight = low->layer->weight;
    const at::Tensor view_at_rest = weight.t();
    {
      const ComputeDtypeGuard guard(*low);
      {
        const ComputeDtypeGuard again(*low->layer);
        const ComputeDtypeGuard nothing(*full);
        EXPECT_EQ(full->weight.scalar_type(), at::kFloat);
      }
      EXPECT_EQ(weight.scalar_type(), at::kBFloat16);
      EXPECT_EQ(weight.t().scalar_type(), at::kBFloat16);
      EXPECT_EQ(weight.detach().scalar_type(), at::kBFloat16);
      EXPECT_EQ(sharded_state_dict(*low).at("layer.weight").scalar_type(), at::kFloat);
    }
    EXPECT_EQ(weight.scalar_type(), at::kFloat);
    EXPECT_EQ(weight.t().scalar_type(), at::kFloat);
    EXPECT_EQ(weight.detach().scalar_type(), at::kFloat);
  });
}

TEST(ComputeDtypeAfterUnshard, IsReportedUntilParametersAreResharded) {
  run_ranks(2, [](int) {
    const DeviceMesh mesh = init_device_mesh("dp=2");
    CastsToWeight low;
    fully_shard(*low, mesh, kLow);
    const at::Tensor& weight = low->layer->weight;
    unshard(*low);
    EXPECT_EQ(weight.scalar_type(), at::kBFloat16);
    EXPECT_EQ(weight.t().scalar_type(), at::kBFloat16);
    EXPECT_EQ(sharded_state_dict(*low).at("layer.weight").scalar_type(), at::kFloat);
    reshard(*low);
    EXPECT_EQ(weight.scalar_type(), at::kFloat);
    unshard_async(*low).wait();
    EXPECT_EQ(weight.scalar_type(), at::kBFloat16);
    {
      const c10::AutoGradMode no_grad(false);
      weight.mul_(2);  // outdates the gathered copy
    }
    EXPECT_EQ(weight.scalar_type(), at::kFloat);
  });
}

/// Its state, and what it reads of parameters, is in the dtype at rest.
TEST(ComputeDtypeAfterUnshard, AnOptimizerStepsAsAtRest) {
  run_ranks(2, [](int) {
    const DeviceMesh mesh = init_device_mesh("dp=2");
    std::vector<at::Tensor> found;
    for (const bool unshards : {false, true}) {
      CastsToWeight low;
      for (const at::Tensor& parameter : low->parameters()) {
        parameter.set_data(test::test_numbers(parameter.sizes().vec(), 3).to(at::kFloat));
      }
      fully_shard(*low, mesh, kLow);
      torch::optim::AdamW optimizer(low->parameters(), torch::optim::AdamWOptions(0.1));
      {
        const ComputeDtypeGuard guard(*low);
        low->forward(at::ones({2, 8})).sum().backward();
      }
      if (unshards) unshard(*low);
      optimizer.step();
      found.push_back(full_tensor(low->layer->weight.detach()));
    }
    EXPECT_TRUE(at::equal(found[0], found[1]));
  });
}

TEST(ComputeDtypeGuard, IsLeftByAnException) {
  run_ranks(2, [](int) {
    auto net = fully_shard(CastsToWeight(), init_device_mesh("dp=2"), kLow);
    EXPECT_ANY_THROW(net(at::ones({2, 5})));
    EXPECT_EQ(net->layer->weight.scalar_type(), at::kFloat);
    const auto fails = net->layer->bias.register_hook(
        [](const at::Tensor&) -> at::Tensor { throw std::runtime_error("in backward"); });
    EXPECT_ANY_THROW(net(at::ones({2, 8})).sum().backward());
    EXPECT_EQ(net->layer->weight.scalar_type(), at::kFloat);
    net->layer->bias.remove_hook(fails);
    net(at::ones({2, 8})).sum().backward();
    EXPECT_EQ(net->layer->weight.scalar_type(), at::kFloat);
  });
}

TEST(ComputeDtypeGuard, ErrorsAboutDtypesNameThePolicy) {
  run_ranks(2, [](int) {
    torch::nn::Linear layer(4, 4);
    torch::nn::Conv1d convolution(4, 4, 1);
    for (torch::nn::Module* module :
         std::vector<torch::nn::Module*>{layer.get(), convolution.get()}) {
      fully_shard(*module, init_device_mesh("dp=2"), kLow);
    }
    const std::vector<std::function<void()>> calls = {
        [&] {
          layer(at::ones({2, 4}));
        },  // refused by an op
        [&] {
          convolution(at::ones({2, 4, 3}));
        },  // and before there is one
    };
    for (const auto& call : calls) {
      try {
        call();
        ADD_FAILURE() << "float32 and bfloat16 were multiplied";
      } catch (const c10::Error& error) {
        EXPECT_NE(std::string(error.what()).find("param_dtype"), std::string::npos) << error.what();
      }
    }
  });
}

}  // namespace compute_dtype_test
}  // namespace tessera
