// The forms that training takes: replicas, accumulation, unused and tied parameters, errors.
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/normalization.h>

#include "tessera/base/errors.h"
#include "tessera/comm/recorder.h"
#include "tessera/comm/threads.h"
#include "tessera/dtensor/decision.h"
#include "tessera/fsdp/fully_shard.h"
#include "tests/fsdp/models.h"

namespace tessera {
namespace {

using comm::CommOp;
using comm::init_device_mesh;
using comm::Recorder;
using comm::run_ranks;
using test::adamw;
using test::Batch;
using test::layers_of;
using test::make_batch;
using test::make_mlp;
using test::parameters_differ;
using test::sgd;
using test::test_numbers;
using test::train;

const std::vector<int64_t> kWidths = {6, 10, 7, 3};

using ShardNet = std::function<void(torch::nn::Sequential&, const DeviceMesh&)>;

void shard_layers(torch::nn::Sequential& net, const DeviceMesh& mesh,
                  const FullyShardOptions& options = {}) {
  for (auto* layer : layers_of(net)) fully_shard(*layer, mesh, options);
}

/// Ten steps of AdamW as one rank does them with the whole batch.
void trains_as_one_rank(const char* text, int ranks, const ShardNet& shard) {
  const Batch batch = make_batch(12, kWidths.front(), kWidths.back());
  run_ranks(ranks, [&](int rank) {
    const DeviceMesh mesh = init_device_mesh(text);
    auto plain = make_mlp(kWidths);
    auto alone = adamw()(plain->parameters());
    train([&](const at::Tensor& x) { return plain->forward(x); }, *alone, batch, 10);
    auto net = make_mlp(kWidths);
    shard(net, mesh);
    auto optimizer = adamw()(net->parameters());
    train([&](const at::Tensor& x) { return net->forward(x); }, *optimizer, batch.part(rank, ranks),
          10);
    EXPECT_EQ(parameters_differ(*net, *plain), "") << text;
    EXPECT_EQ(gathered_memory(mesh).bytes, 0) << text;
  });
}

TEST(FullyShardForms, ReplicasOfShardsTrainAsOneRank) {
  trains_as_one_rank("dp=2,fs=2", 4, [](auto& net, const auto& mesh) { shard_layers(net, mesh); });
  trains_as_one_rank("dp=2,fs=3", 6, [](auto& net, const auto& mesh) { shard_layers(net, mesh); });
  trains_as_one_rank("dp=1,fs=2", 2, [](auto& net, const auto& mesh) { shard_layers(net, mesh); });
  trains_as_one_rank("dp=2,fs=1", 2, [](auto& net, const auto& mesh) { shard_layers(net, mesh); });
}

TEST(FullyShardForms, ReplicasTrainAsOneRank) {
  trains_as_one_rank("dp=3", 3, [](auto& net, const auto& mesh) {
    for (auto* layer : layers_of(net)) replicate(*layer, mesh);
  });
}

TEST(FullyShardForms, ReplicasGatherNothingAndReduceOncePerGroup) {
  run_ranks(2, [](int rank) {
    const DeviceMesh mesh = init_device_mesh("dp=2");
    const Batch mine = make_batch(4, 6, 3).part(rank, 2);
    auto net = make_mlp(kWidths);
    replicate(*net, mesh);
    Recorder recorder(*comm::current_world());
    at::mse_loss(net->forward(mine.x), mine.y).backward();
    EXPECT_EQ(recorder.count(CommOp::all_reduce), 1) << recorder.to_text();
    EXPECT_EQ(recorder.count(), 1);
  });
}

TEST(FullyShardForms, KeepsParametersBetweenForwardAndBackwardIfToldTo) {
  trains_as_one_rank("dp=2", 2, [](auto& net, const auto& mesh) {
    shard_layers(net, mesh, {.reshard_after_forward = false});
  });
  run_ranks(2, [](int rank) {
    const DeviceMesh mesh = init_device_mesh("dp=2");
    const Batch mine = make_batch(4, 6, 3).part(rank, 2);
    auto net = make_mlp(kWidths);
    shard_layers(net, mesh, {.reshard_after_forward = false});
    Recorder recorder(*comm::current_world());
    for (int step = 0; step < 3; ++step) {
      recorder.clear();
      at::mse_loss(net->forward(mine.x), mine.y).backward();
      EXPECT_EQ(recorder.count(CommOp::all_gather), 3) << "step " << step;
      EXPECT_EQ(gathered_memory(mesh).bytes, 0);
    }
  });
}

TEST(FullyShardForms, OtherDimsAreCutUnevenlyToo) {
  for (const char* text : {"dp=2", "dp=3", "dp=4"}) {
    trains_as_one_rank(text, text[3] - '0', [](auto& net, const auto& mesh) {
      shard_layers(net, mesh, {.shard_dim = [](const std::string&, const at::Tensor& parameter) {
                     return std::optional<int>(parameter.dim() == 2 ? 1 : 0);
                   }});
      EXPECT_EQ(sharding(layers_of(net)[0]->weight).placements_text(), "S1");
    });
  }
}

/// Several small batches, reduced each time or only with the last.
TEST(FullyShardForms, AccumulatesGradientsWithAndWithoutReducingThem) {
  for (const bool reduce_each : {true, false}) {
    run_ranks(2, [&](int rank) {
      const DeviceMesh mesh = init_device_mesh("dp=2");
      const Batch batch = make_batch(12, kWidths.front(), kWidths.back());
      auto plain = make_mlp(kWidths);
      auto net = make_mlp(kWidths);
      shard_layers(net, mesh);
      auto alone = sgd()(plain->parameters());
      auto optimizer = sgd()(net->parameters());
      Recorder recorder(*comm::current_world());
      for (int step = 0; step < 3; ++step) {
        alone->zero_grad();
        optimizer->zero_grad();
        recorder.clear();
        for (int small = 0; small < 3; ++small) {
          const Batch part = batch.part(small, 3);
          at::mse_loss(plain->forward(part.x), part.y).backward();
          set_requires_gradient_sync(*net, reduce_each || small == 2);
          const Batch mine = part.part(rank, 2);
          at::mse_loss(net->forward(mine.x), mine.y).backward();
          EXPECT_EQ(gathered_memory(mesh).bytes, 0);
        }
        EXPECT_EQ(recorder.count(CommOp::reduce_scatter), reduce_each ? 9 : 3);
        alone->step();
        optimizer->step();
      }
      EXPECT_EQ(parameters_differ(*net, *plain), "") << reduce_each;
    });
  }
}

/// A group of which one layer takes part in every other step only; a frozen and an ignored one.
TEST(FullyShardForms, ParametersMayTakeNoPart) {
  run_ranks(3, [](int rank) {
    const DeviceMesh mesh = init_device_mesh("dp=3");
    const Batch batch = make_batch(12, 6, 3);
    const auto make = [] {
      auto net = make_mlp({6, 6, 6, 3});
      layers_of(net)[2]->weight.set_requires_grad(false);
      return net;
    };
    auto plain = make();
    auto net = make();
    const at::Tensor ignored = layers_of(net)[2]->bias;
    fully_shard(*net, mesh, {.ignored = {ignored}});
    EXPECT_FALSE(is_dtensor(ignored));
    auto alone = sgd()(plain->parameters());
    auto optimizer = sgd()(net->parameters());
    for (int step = 0; step < 4; ++step) {
      const auto forward = [&](torch::nn::Sequential& of, const at::Tensor& x) {
        auto layers = layers_of(of);
        at::Tensor h = at::tanh(layers[0]->forward(x));
        if (step % 2 == 1) h = at::tanh(layers[1]->forward(h));
        return layers[2]->forward(h);
      };
      alone->zero_grad();
      optimizer->zero_grad();
      const Batch mine = batch.part(rank, 3);
      at::mse_loss(forward(plain, batch.x), batch.y).backward();
      at::mse_loss(forward(net, mine.x), mine.y).backward();
      EXPECT_EQ(layers_of(net)[1]->weight.grad().defined(), step % 2 == 1);
      EXPECT_FALSE(layers_of(net)[2]->weight.grad().defined());
      EXPECT_EQ(gathered_memory(mesh).bytes, 0);
      ignored.mutable_grad() = layers_of(plain)[2]->bias.grad().clone();  // the caller's matter
      alone->step();
      optimizer->step();
    }
    EXPECT_EQ(parameters_differ(*net, *plain), "");
  });
}

struct TiedImpl : torch::nn::Module {
  TiedImpl() {
    register_module("table", table);
    register_module("norm", norm);
    scale = register_parameter("scale", at::ones({}));
    nothing = register_parameter("nothing", at::ones({0, 3}));
    to(at::kDouble);
    const torch::NoGradGuard no_grad;
    table->weight.copy_(test_numbers({9, 5}, 3));
    head = register_parameter("head", table->weight);
  }
  at::Tensor forward(const at::Tensor& tokens) {
    return at::linear(norm(table(tokens)) * scale, head) + nothing.sum();
  }

  torch::nn::Embedding table{9, 5};
  torch::nn::LayerNorm norm{torch::nn::LayerNormOptions({5})};
  at::Tensor scale, nothing, head;
};

/// A table that is also the head, a norm, a parameter of no dims and an empty one.
TEST(FullyShardForms, TiedScalarAndEmptyParametersTrainAsOneRank) {
  for (const int ranks : {2, 4}) {
    run_ranks(ranks, [&](int rank) {
      const DeviceMesh mesh = init_device_mesh("dp=" + std::to_string(ranks));
      const Batch batch = {test_numbers({8, 3}, 5, 9), test_numbers({8, 3, 9}, 6)};
      TiedImpl plain;
      TiedImpl net;
      fully_shard(net, mesh);
      EXPECT_EQ(sharding(net.scale).placements_text(), "R");
      EXPECT_TRUE(net.head.is_same(net.table->weight));
      auto alone =
          adamw()({plain.table->weight, plain.norm->weight, plain.norm->bias, plain.scale});
      auto optimizer = adamw()({net.table->weight, net.norm->weight, net.norm->bias, net.scale});
      train([&](const at::Tensor& x) { return plain.forward(x); }, *alone, batch, 10);
      train([&](const at::Tensor& x) { return net.forward(x); }, *optimizer,
            batch.part(rank, ranks), 10);
      EXPECT_TRUE(at::allclose(full_tensor(net.table->weight.detach()),
                               plain.table->weight.detach(), 1e-10, 1e-10));
      EXPECT_TRUE(at::allclose(full_tensor(net.norm->weight.detach()), plain.norm->weight.detach(),
                               1e-10, 1e-10));
      EXPECT_NEAR(full_tensor(net.scale.detach()).item<double>(), plain.scale.item<double>(),
                  1e-10);
    });
  }
}

TEST(FullyShardForms, SeveralForwardsBeforeOneBackward) {
  run_ranks(2, [](int rank) {
    const DeviceMesh mesh = init_device_mesh("dp=2");
    const Batch batch = make_batch(12, kWidths.front(), kWidths.back());
    auto plain = make_mlp(kWidths);
    auto net = make_mlp(kWidths);
    shard_layers(net, mesh);
    auto alone = sgd()(plain->parameters());
    auto optimizer = sgd()(net->parameters());
    const auto twice = [](torch::nn::Sequential& of, const at::Tensor& x) {
      return of->forward(x) + of->forward(x * 2);
    };
    train([&](const at::Tensor& x) { return twice(plain, x); }, *alone, batch, 5);
    train([&](const at::Tensor& x) { return twice(net, x); }, *optimizer, batch.part(rank, 2), 5);
    EXPECT_EQ(parameters_differ(*net, *plain), "");
  });
}

/// An error in forward, and one in backward, on all ranks; then training goes on as if nothing was.
TEST(FullyShardForms, GoesOnAfterErrors) {
  run_ranks(2, [](int rank) {
    const DeviceMesh mesh = init_device_mesh("dp=2");
    const Batch batch = make_batch(12, kWidths.front(), kWidths.back());
    const Batch mine = batch.part(rank, 2);
    auto plain = make_mlp(kWidths);
    auto net = make_mlp(kWidths);
    shard_layers(net, mesh);
    auto alone = sgd()(plain->parameters());
    auto optimizer = sgd()(net->parameters());
    for (int round = 0; round < 3; ++round) {
      train([&](const at::Tensor& x) { return plain->forward(x); }, *alone, batch, 2);
      train([&](const at::Tensor& x) { return net->forward(x); }, *optimizer, mine, 2);
      EXPECT_ANY_THROW(layers_of(net)[1]->forward(at::ones({2, 99}, at::kDouble)));
      optimizer->zero_grad();
      at::Tensor hidden = layers_of(net)[1]->forward(at::tanh(layers_of(net)[0]->forward(mine.x)));
      hidden.register_hook(
          [](const at::Tensor&) -> at::Tensor { throw InvalidArgument("a hook of the test"); });
      const at::Tensor out = layers_of(net)[2]->forward(hidden);
      EXPECT_ANY_THROW(at::mse_loss(out, mine.y).backward());
    }
    EXPECT_EQ(parameters_differ(*net, *plain), "");
    train([&](const at::Tensor& x) { return net->forward(x); }, *optimizer, mine, 1);
    EXPECT_EQ(gathered_memory(mesh).bytes, 0);
  });
}

/// Forgets what a function computed inside, and computes it again in backward: activation
/// checkpointing, as a backward inside of backward.
struct Recompute : torch::autograd::Function<Recompute> {
  static at::Tensor forward(torch::autograd::AutogradContext* ctx, const at::Tensor& x,
                            const test::Forward& fn) {
    ctx->save_for_backward({x});
    held = fn;
    const torch::NoGradGuard no_grad;
    return fn(x);
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* ctx,
                                                 torch::autograd::variable_list grads) {
    const at::Tensor x = ctx->get_saved_variables()[0].detach().requires_grad_();
    at::Tensor y;
    {
      const torch::AutoGradMode records(true);
      y = held(x);
    }
    torch::autograd::backward({y}, {grads[0]});
    return {x.grad(), at::Tensor()};
  }
  static thread_local test::Forward held;
};
thread_local test::Forward Recompute::held;

TEST(FullyShardForms, RecomputedActivationsTouchAgain) {
  run_ranks(2, [](int rank) {
    const DeviceMesh mesh = init_device_mesh("dp=2");
    const Batch batch = make_batch(12, kWidths.front(), kWidths.back());
    auto plain = make_mlp(kWidths);
    auto net = make_mlp(kWidths);
    shard_layers(net, mesh);
    auto alone = adamw()(plain->parameters());
    auto optimizer = adamw()(net->parameters());
    const auto forward = [&](const at::Tensor& x) {
      const auto layers = layers_of(net);
      const at::Tensor h = at::tanh(layers[0]->forward(x));
      return Recompute::apply(h, test::Forward([layers](const at::Tensor& in) {
                                return layers[2]->forward(at::tanh(layers[1]->forward(in)));
                              }));
    };
    train([&](const at::Tensor& x) { return plain->forward(x); }, *alone, batch, 10);
    train(forward, *optimizer, batch.part(rank, 2), 10);
    EXPECT_EQ(parameters_differ(*net, *plain), "");
    EXPECT_EQ(gathered_memory(mesh).bytes, 0);
    Recompute::held = nullptr;
  });
}

TEST(FullyShardForms, NothingGrowsOverManySteps) {
  run_ranks(2, [](int rank) {
    const DeviceMesh mesh = init_device_mesh("dp=2");
    const Batch mine = make_batch(4, kWidths.front(), kWidths.back()).part(rank, 2);
    auto net = make_mlp(kWidths);
    shard_layers(net, mesh);
    auto optimizer = adamw()(net->parameters());
    const auto forward = [&](const at::Tensor& x) { return net->forward(x); };
    int64_t peak = 0;
    size_t shardings = 0;
    uint64_t decisions = 0;
    for (int step = 0; step < 200; ++step) {
      train(forward, *optimizer, mine, 1);
      if (step % 3 == 0) {
        const torch::NoGradGuard no_grad;
        net->forward(mine.x);
      }
      if (step == 20) {
        peak = gathered_memory(mesh).peak_bytes;
        shardings = live_shardings();
        decisions = dtensor::decision_stats().misses;
      }
    }
    // A leak of any step would be many times this; how soon a message lets go of its buffer varies.
    EXPECT_LT(gathered_memory(mesh).peak_bytes, 2 * peak);
    EXPECT_LE(live_shardings(), shardings + 8);  // the other rank may be in the middle of an op
    EXPECT_EQ(dtensor::decision_stats().misses, decisions);
  });
}

/// A parameter changed by hand while it is gathered: the next use sees it.
TEST(FullyShardForms, WritesToShardsAreSeen) {
  run_ranks(2, [](int) {
    const DeviceMesh mesh = init_device_mesh("dp=2");
    auto net = make_mlp({4, 3});
    auto* layer = layers_of(net)[0];
    fully_shard(*net, mesh);
    unshard(*net);
    EXPECT_TRUE(sharded_groups(*net)[0].gathered);
    const at::Tensor x = at::ones({1, 4}, at::kDouble);
    const torch::NoGradGuard no_grad;
    net->forward(x);
    layer->weight.zero_();
    layer->bias.fill_(2);
    EXPECT_TRUE(at::equal(net->forward(x), at::full({1, 3}, 2.0, at::kDouble)));
    to_local(layer->bias).fill_(3);
    EXPECT_TRUE(at::equal(net->forward(x), at::full({1, 3}, 3.0, at::kDouble)));
    reshard(*net);
    EXPECT_EQ(gathered_memory(mesh).bytes, 0);
  });
}

/// Hooks of parameters see the whole gradient of this rank's batch, before it is reduced.
TEST(FullyShardForms, HooksOfParametersRun) {
  run_ranks(2, [](int) {
    const DeviceMesh mesh = init_device_mesh("dp=2");
    auto net = make_mlp({4, 3});
    fully_shard(*net, mesh);
    int calls = 0;
    layers_of(net)[0]->weight.register_hook([&](const at::Tensor& grad) {
      ++calls;
      EXPECT_EQ(grad.sizes(), at::IntArrayRef({3, 4}));
      return grad * 2;
    });
    net->forward(at::ones({1, 4}, at::kDouble)).sum().backward();
    EXPECT_EQ(calls, 1);
    EXPECT_TRUE(at::equal(full_tensor(layers_of(net)[0]->weight.grad()),
                          at::full({3, 4}, 2.0, at::kDouble)));
  });
}

/// Regularisers and views of parameters in the loss, and derivatives of the loss by inputs.
TEST(FullyShardForms, ParametersInOtherOpsThanLayers) {
  run_ranks(3, [](int rank) {
    const DeviceMesh mesh = init_device_mesh("dp=3");
    const Batch batch = make_batch(12, kWidths.front(), kWidths.back());
    auto plain = make_mlp(kWidths);
    auto net = make_mlp(kWidths);
    shard_layers(net, mesh);
    const auto loss = [](torch::nn::Sequential& of, const Batch& on) {
      const at::Tensor w = layers_of(of)[1]->weight;
      at::Tensor extra = w.pow(2).sum() + w[0].exp().sum() + w.view({-1}).narrow(0, 3, 4).sum() +
                         at::cat(w.split(2, 1), 0).tanh().mean();
      for (const auto& p : of->parameters()) extra = extra + p.abs().mean();
      return at::mse_loss(of->forward(on.x), on.y) + extra * 0.1;
    };
    loss(plain, batch).backward();
    loss(net, batch.part(rank, 3)).backward();
    for (const auto& item : net->named_parameters()) {
      EXPECT_TRUE(at::allclose(full_tensor(item.value().grad()),
                               plain->named_parameters()[item.key()].grad(), 1e-10, 1e-12))
          << item.key();
    }
    EXPECT_EQ(gathered_memory(mesh).bytes, 0);
  });
}

TEST(FullyShardForms, SecondDerivativesByTheInput) {
  run_ranks(2, [](int) {
    const DeviceMesh mesh = init_device_mesh("dp=2");
    auto plain = make_mlp(kWidths);
    auto net = make_mlp(kWidths);
    shard_layers(net, mesh);
    const auto penalty = [](torch::nn::Sequential& of) {
      const at::Tensor x = test_numbers({4, 6}, 9).requires_grad_();
      const at::Tensor out = of->forward(x).sum();
      const at::Tensor slope = torch::autograd::grad({out}, {x}, {}, std::nullopt, true)[0];
      (out + slope.pow(2).sum()).backward();
      return x.grad();
    };
    EXPECT_TRUE(at::allclose(penalty(net), penalty(plain), 1e-10, 1e-12));
    for (const auto& item : net->named_parameters()) {
      EXPECT_TRUE(at::allclose(full_tensor(item.value().grad()),
                               plain->named_parameters()[item.key()].grad(), 1e-10, 1e-12))
          << item.key();
    }
  });
}

}  // namespace
}  // namespace tessera
