#include <gtest/gtest.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/adagrad.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/lbfgs.h>
#include <torch/optim/rmsprop.h>
#include <torch/optim/sgd.h>

#include "tessera/base/errors.h"
#include "tessera/checkpoint/load.h"
#include "tessera/checkpoint/optimizer_state.h"
#include "tessera/checkpoint/save.h"
#include "tessera/comm/rank_generator.h"
#include "tessera/fsdp/fully_shard.h"
#include "tessera/module/state.h"
#include "tests/checkpoint/shared_dir.h"
#include "tests/fsdp/models.h"

namespace tessera {
namespace optimizer_test {

using comm::init_device_mesh;
using test::make_mlp;
using test::SharedDir;
using Optimizer = torch::optim::Optimizer;
using MakeOptimizer = std::function<std::unique_ptr<Optimizer>(torch::nn::Module&, double lr)>;

void step(torch::nn::Sequential& net, Optimizer& optimizer) {
  optimizer.zero_grad();
  net->forward(at::linspace(-1, 1, 12, at::kDouble).reshape({3, 4})).square().mean().backward();
  optimizer.step();
}

State state_of(torch::nn::Sequential& net, Optimizer& optimizer) {
  State state;
  add_module(state, "model.", *net);
  add_optimizer(state, "optim.", optimizer, *net);
  return state;
}

/// Three steps, saved after two on four ranks; the third again from the checkpoint on two ranks and
/// on one, with another learning rate to begin with.
void check_resumes(const std::string& name, const MakeOptimizer& make) {
  const SharedDir dir(name);
  FullStateDict expected;
  {  // what one rank without interruption does
    auto net = make_mlp({4, 7, 2});
    const auto optimizer = make(*net, 0.05);
    for (int i = 0; i < 3; ++i) step(net, *optimizer);
    expected = full_state_dict(*net);
  }
  test::run_ranks(4, [&](int) {
    const DeviceMesh mesh = init_device_mesh("dp=4");
    auto net = make_mlp({4, 7, 2});
    fully_shard(*net, mesh);
    const auto optimizer = make(*net, 0.05);  // Adagrad makes its state at once
    for (int i = 0; i < 2; ++i) step(net, *optimizer);
    save(state_of(net, *optimizer), dir / "ckpt");
  });
  for (const int ranks : {2, 1}) {
    test::run_ranks(ranks, [&](int) {
      auto net = make_mlp({4, 7, 2}, 99);
      if (ranks > 1) fully_shard(*net, init_device_mesh("dp=2"));
      const auto optimizer = make(*net, 0.7);
      State state = state_of(net, *optimizer);
      load(state, dir / "ckpt");
      take_optimizer(state, "optim.", *optimizer, *net);
      step(net, *optimizer);
      for (const auto& [parameter, value] : full_state_dict(*net)) {
        EXPECT_TRUE(at::allclose(value, expected.at(parameter), 1e-12, 1e-12))
            << name << ": " << parameter << " on " << ranks;
      }
    });
  }
}

TEST(Optimizer, GoesOnFromACheckpointOnOtherRanks) {
  using namespace torch::optim;
  check_resumes("adam", [](auto& net, double lr) {
    return std::make_unique<Adam>(net.parameters(), AdamOptions(lr).amsgrad(true));
  });
  check_resumes("adamw", [](auto& net, double lr) {
    return std::make_unique<AdamW>(net.parameters(), AdamWOptions(lr));
  });
  check_resumes("sgd", [](auto& net, double lr) {
    return std::make_unique<SGD>(net.parameters(), SGDOptions(lr).momentum(0.9).dampening(0.1));
  });
  check_resumes("rmsprop", [](auto& net, double lr) {
    return std::make_unique<RMSprop>(net.parameters(),
                                     RMSpropOptions(lr).momentum(0.5).centered(true));
  });
  check_resumes("adagrad", [](auto& net, double lr) {
    return std::make_unique<Adagrad>(net.parameters(), AdagradOptions(lr).lr_decay(0.1));
  });
}

TEST(Optimizer, OfUnknownKindOrParametersIsRefused) {
  auto net = make_mlp({4, 7, 2});
  auto other = make_mlp({4, 7, 2});
  State state;
  torch::optim::LBFGS lbfgs(net->parameters());
  EXPECT_THROW(add_optimizer(state, "optim.", lbfgs, *net), NotSupported);
  torch::optim::SGD sgd(other->parameters(), torch::optim::SGDOptions(0.1));
  EXPECT_THROW(add_optimizer(state, "optim.", sgd, *net), InvalidArgument);
}

TEST(Generator, GoesOnFromACheckpoint) {
  const SharedDir dir("generator");
  test::run_ranks(2, [&](int rank) {
    at::Generator generator = comm::default_generator();
    generator.set_current_seed(static_cast<uint64_t>(rank + 5));
    at::randn({3}, generator);
    const std::string name = "rng." + std::to_string(rank);
    State state;
    add_generator(state, name, generator);
    save(state, dir / "ckpt");
    const at::Tensor expected = at::randn({4}, generator);
    State loaded = {{name, PlainValue()}};
    load(loaded, dir / "ckpt", {.allow_unexpected = true});
    take_generator(loaded, name, generator);
    EXPECT_TRUE(at::equal(at::randn({4}, generator), expected));
  });
}

}  // namespace optimizer_test
}  // namespace tessera
