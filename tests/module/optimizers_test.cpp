// torch::optim and clip_grad_norm_ in plain libtorch code on sharded parameters: after ten steps
// the parameters are those of one rank.
#include <ATen/ops/_fused_adam.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/normalization.h>
#include <torch/nn/utils/clip_grad.h>
#include <torch/optim/adagrad.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/lbfgs.h>
#include <torch/optim/rmsprop.h>
#include <torch/optim/sgd.h>

#include "tessera/base/errors.h"
#include "tessera/comm/threads.h"
#include "tessera/dtensor/dtensor.h"
#include "tessera/fsdp/fully_shard.h"
#include "tests/support/training.h"

namespace tessera {
namespace optimizers_test {

using test::Results;
using test::Rng;
namespace optim = torch::optim;

constexpr int kSteps = 10;

struct NetImpl : torch::nn::Module {
  NetImpl() {
    register_module("first", first);
    register_module("norm", norm);
    register_module("second", second);
  }
  at::Tensor forward(const at::Tensor& x) { return second(norm(at::tanh(first(x)))); }

  torch::nn::Linear first{5, 6};
  torch::nn::LayerNorm norm{torch::nn::LayerNormOptions({6})};
  torch::nn::Linear second{6, 3};
};
TORCH_MODULE(Net);

using MakeOptimizer = std::function<std::unique_ptr<optim::Optimizer>(std::vector<at::Tensor>)>;

template <typename Optimizer, typename Options>
MakeOptimizer with(Options options) {
  return [options](std::vector<at::Tensor> parameters) -> std::unique_ptr<optim::Optimizer> {
    return std::make_unique<Optimizer>(std::move(parameters), options);
  };
}

struct OptimizerCase {
  std::string name;
  MakeOptimizer make;
  double clip = 0;  ///< norm to clip to before each step; 0: none
  double norm_type = 2;
};

const std::vector<OptimizerCase>& optimizer_cases() {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  static const std::vector<OptimizerCase> cases = {
      {"SGD", with<optim::SGD>(optim::SGDOptions(0.1))},
      {"SGDWithMomentum",
       with<optim::SGD>(optim::SGDOptions(0.1).momentum(0.9).dampening(0.1).weight_decay(0.01))},
      {"SGDWithNesterov",
       with<optim::SGD>(optim::SGDOptions(0.1).momentum(0.9).nesterov(true).weight_decay(0.01))},
      {"Adam", with<optim::Adam>(optim::AdamOptions(0.05).weight_decay(0.01))},
      {"AdamWithAmsgrad", with<optim::Adam>(optim::AdamOptions(0.05).amsgrad(true))},
      {"AdamW", with<optim::AdamW>(optim::AdamWOptions(0.05).weight_decay(0.1))},
      {"AdamWWithAmsgrad", with<optim::AdamW>(optim::AdamWOptions(0.05).amsgrad(true))},
      {"Adagrad",
       with<optim::Adagrad>(optim::AdagradOptions(0.1).lr_decay(0.01).weight_decay(0.01))},
      {"RMSprop", with<optim::RMSprop>(optim::RMSpropOptions(0.02).momentum(0.9).centered(true))},
      {"LBFGS", with<optim::LBFGS>(optim::LBFGSOptions(0.5).max_iter(3).history_size(4))},
      {"LBFGSWithLineSearch",
       with<optim::LBFGS>(optim::LBFGSOptions(1).max_iter(3).line_search_fn("strong_wolfe"))},
      {"ClippedByNorm", with<optim::SGD>(optim::SGDOptions(0.1)), 0.05},
      {"ClippedByFirstNorm", with<optim::SGD>(optim::SGDOptions(0.1)), 0.05, 1},
      {"ClippedByThirdNorm", with<optim::SGD>(optim::SGDOptions(0.1)), 0.05, 3},
      {"ClippedByMaximum", with<optim::SGD>(optim::SGDOptions(0.1)), 0.01, kInfinity},
  };
  return cases;
}

/// Ten steps; the parameters, losses and norms.
Results train(const OptimizerCase& subject, Net net, const at::Tensor& x,
              const at::Tensor& target) {
  const auto optimizer = subject.make(net->parameters());
  Results out;
  for (int step = 0; step < kSteps; ++step) {
    const auto closure = [&] {
      optimizer->zero_grad();
      const at::Tensor loss = at::mse_loss(net->forward(x), target);
      loss.backward();
      return loss;
    };
    const std::string number = " " + std::to_string(step);
    if (subject.clip > 0) {
      out["loss" + number] = closure().detach();
      const double norm =
          torch::nn::utils::clip_grad_norm_(net->parameters(), subject.clip, subject.norm_type);
      out["norm" + number] = at::full({}, norm, at::kDouble);
      optimizer->step();
    } else {
      out["loss" + number] = optimizer->step(closure).detach();
    }
  }
  for (const auto& item : net->named_parameters()) out[item.key()] = item.value().detach();
  return out;
}

at::Tensor input() { return test::test_numbers({7, 5}, 11); }
at::Tensor wanted() { return test::test_numbers({7, 3}, 12); }

Results on_one_rank(const OptimizerCase& subject) {
  Net net;
  test::set_parameters(*net, 5);
  return train(subject, net, input(), wanted());
}

class Optimizers : public ::testing::TestWithParam<size_t> {};

TEST_P(Optimizers, StepAsOnOneRank) {
  const OptimizerCase& subject = optimizer_cases()[GetParam()];
  const Results expected = on_one_rank(subject);
  test::for_each_seed(3, [&](Rng& rng) {
    const std::string text = rng.one_of<std::string>({"a=2", "a=2,b=2", "a=3", "a=2,b=2,c=2"});
    const uint64_t seed = rng.next();
    comm::run_ranks(DeviceMesh::parse(text).size(), [&](int rank) {
      const DeviceMesh mesh = comm::init_device_mesh(text);
      Rng mine(seed);
      std::string drawn = text;
      const auto draw = [&](const std::string& name, int64_t ndim) {
        const auto placements = test::random_placements(mine, mesh, ndim);
        drawn += "; " + name + " " + placements_text(placements);
        return placements;
      };
      Net net;
      test::set_parameters(*net, 5);
      test::shard_parameters(*net, mesh, draw);
      const at::Tensor x = distribute_tensor(input(), mesh, draw("x", 2));
      const at::Tensor target = distribute_tensor(wanted(), mesh, draw("target", 2));
      EXPECT_EQ(test::difference(train(subject, net, x, target), expected), "")
          << "rank " << rank << ": " << drawn;
    });
  });
}

TEST_P(Optimizers, StepUnderFullyShardAsOnOneRank) {
  const OptimizerCase& subject = optimizer_cases()[GetParam()];
  const Results expected = on_one_rank(subject);
  comm::run_ranks(2, [&](int rank) {
    const DeviceMesh mesh = comm::init_device_mesh("dp=2");
    Net net;
    test::set_parameters(*net, 5);
    fully_shard(*net->first, mesh);
    fully_shard(*net, mesh);
    EXPECT_EQ(test::difference(train(subject, net, input(), wanted()), expected), "")
        << "rank " << rank;
  });
}

std::vector<size_t> all_cases() {
  std::vector<size_t> out(optimizer_cases().size());
  for (size_t i = 0; i < out.size(); ++i) out[i] = i;
  return out;
}

INSTANTIATE_TEST_SUITE_P(All, Optimizers, ::testing::ValuesIn(all_cases()),
                         [](const auto& info) { return optimizer_cases()[info.param].name; });

/// Each rank counts steps on a mesh of its own: a submesh of that of the parameters, or the same
/// ranks in other axes.
TEST(FusedAdam, TakesStepsOfASubmesh) {
  const auto run = [](const std::function<at::Tensor(const at::Tensor&)>& place,
                      const std::function<at::Tensor(const at::Tensor&)>& place_step) {
    std::vector<at::Tensor> params, grads, averages, squares, steps;
    for (uint64_t i = 0; i < 2; ++i) {
      params.push_back(place(test::test_numbers({4, 6}, 1 + i)));
      grads.push_back(place(test::test_numbers({4, 6}, 3 + i)));
      averages.push_back(place(test::test_numbers({4, 6}, 5 + i)));
      squares.push_back(place(test::test_numbers({4, 6}, 7 + i).abs()));
      steps.push_back(place_step(at::full({}, 3.0, at::kFloat)));
    }
    at::_fused_adam_(params, grads, averages, squares, {}, steps, 0.1, 0.9, 0.99, 0.01, 1e-8, false,
                     false);
    return params;
  };
  const auto same = [](const at::Tensor& x) { return x.clone(); };
  const auto expected = run(same, same);
  comm::run_ranks(4, [&](int) {
    const DeviceMesh mesh = comm::init_device_mesh("dp=2,tp=2");
    const auto place = [&](const at::Tensor& x) {
      return distribute_tensor(x, mesh, parse_placements("S0,S1"));
    };
    for (const DeviceMesh& other : {mesh[{"tp"}], mesh[{"dp"}], mesh.flatten("all")}) {
      const auto got = run(
          place, [&](const at::Tensor& x) { return distribute_tensor(x, other, {Replicate()}); });
      for (size_t i = 0; i < got.size(); ++i) {
        EXPECT_TRUE(at::allclose(full_tensor(got[i]), expected[i])) << other.to_text();
      }
    }
  });
}

/// Gradients that lie on several meshes over the same ranks: one on all of dp=2,tp=2, one on the
/// same ranks as one axis, one on the axes in another order.
TEST(ClipGradNorm, CountsGradientsOfSeveralMeshes) {
  std::vector<at::Tensor> plain;
  for (uint64_t i = 0; i < 3; ++i) {
    plain.push_back(test::test_numbers({4, 6}, 40 + i).requires_grad_());
    plain.back().mutable_grad() = test::test_numbers({4, 6}, 50 + i);
  }
  for (const double norm_type : {2.0, 1.0, std::numeric_limits<double>::infinity()}) {
    std::vector<at::Tensor> reference;
    for (const auto& p : plain) {
      reference.push_back(p.detach().clone().requires_grad_());
      reference.back().mutable_grad() = p.grad().clone();
    }
    const double expected = torch::nn::utils::clip_grad_norm_(reference, 0.5, norm_type);
    comm::run_ranks(4, [&](int) {
      const DeviceMesh both = comm::init_device_mesh("dp=2,tp=2");
      const DeviceMesh flat = both.flatten("all");
      const DeviceMesh turned = both[{"tp", "dp"}];
      std::vector<at::Tensor> sharded;
      const auto add = [&](const DeviceMesh& mesh, const char* placements) {
        const at::Tensor& p = plain[sharded.size()];
        at::Tensor s = distribute_tensor(p, mesh, parse_placements(placements));
        s.mutable_grad() = distribute_tensor(p.grad(), mesh, parse_placements(placements));
        sharded.push_back(s);
      };
      add(both, "S0,S1");
      add(flat, "S1");
      add(turned, "R,S0");
      EXPECT_NEAR(torch::nn::utils::clip_grad_norm_(sharded, 0.5, norm_type), expected, 1e-10);
      for (size_t i = 0; i < sharded.size(); ++i) {
        EXPECT_TRUE(
            at::allclose(full_tensor(sharded[i].grad()), reference[i].grad(), 1e-10, 1e-10));
      }
    });
  }
}

/// A rank of one of the meshes does not hold the other's norm: no value could be right.
TEST(ClipGradNorm, RefusesMeshesThatDoNotShareTheirRanks) {
  comm::run_ranks(4, [&](int rank) {
    const DeviceMesh low = comm::init_device_mesh("a=2@0,1");
    const DeviceMesh high = comm::init_device_mesh("a=2@1,2");
    if (rank != 1) return;
    std::vector<at::Tensor> parameters;
    for (const DeviceMesh& mesh : {low, high}) {
      const at::Tensor part = at::ones({2, 2}, at::kDouble);
      at::Tensor p = from_local(part, mesh, {Replicate()});
      p.requires_grad_();
      p.mutable_grad() = from_local(part, mesh, {Replicate()});
      parameters.push_back(p);
    }
    EXPECT_THROW(torch::nn::utils::clip_grad_norm_(parameters, 1.0), InvalidArgument);
  });
}

}  // namespace optimizers_test
}  // namespace tessera
