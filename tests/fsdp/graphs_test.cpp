// Graphs of other forms than one forward and one backward.
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/custom_function.h>

#include "tests/fsdp/training.h"

namespace tessera::test {
namespace {

/// Several small batches, reduced each time or only with the last.
TEST(FullyShardGraphs, AccumulatesGradientsWithAndWithoutReducingThem) {
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

TEST(FullyShardGraphs, SeveralForwardsBeforeOneBackward) {
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

/// Forgets what a function computed inside, and computes it again in backward: activation
/// checkpointing, as a backward inside of backward.
struct Recompute : torch::autograd::Function<Recompute> {
  static at::Tensor forward(torch::autograd::AutogradContext* ctx, const at::Tensor& x,
                            const Forward& fn) {
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
  static thread_local Forward held;
};
thread_local Forward Recompute::held;

TEST(FullyShardGraphs, RecomputedActivationsTouchAgain) {
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
      return Recompute::apply(h, Forward([layers](const at::Tensor& in) {
                                return layers[2]->forward(at::tanh(layers[1]->forward(in)));
                              }));
    };
    train(forward_of(plain), *alone, batch, 10);
    train(forward, *optimizer, batch.part(rank, 2), 10);
    EXPECT_EQ(parameters_differ(*net, *plain), "");
    EXPECT_EQ(gathered_memory(mesh).bytes, 0);
    Recompute::held = nullptr;
  });
}

TEST(FullyShardGraphs, SecondDerivativesByTheInput) {
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
}  // namespace tessera::test
