// Graphs of other forms than one forward and one backward.
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include "tessera/base/errors.h"
#include "tests/fsdp/training.h"

namespace tessera::test {
namespace graphs_test {

/// Several small batches, reduced each time or only with the last.
TEST(FullyShardGraphs, AccumulatesGradientsWithAndWithoutReducingThem) {
  for (const bool reduce_each : {true, false}) {
    run_ranks(2, [&](int rank) {
      auto [mesh, batch, mine, plain, net, alone, optimizer] = make_twins(rank, 2, kUnmerged);
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
    auto [mesh, batch, mine, plain, net, alone, optimizer] = make_twins(rank, 2);
    const auto twice = [](torch::nn::Sequential& of, const at::Tensor& x) {
      return of->forward(x) + of->forward(x * 2);
    };
    train([&](const at::Tensor& x) { return twice(plain, x); }, *alone, batch, 5);
    train([&](const at::Tensor& x) { return twice(net, x); }, *optimizer, mine, 5);
    EXPECT_EQ(parameters_differ(*net, *plain), "");
  });
}

/// Two graphs at a time, gone through in either order.
TEST(FullyShardGraphs, SeveralForwardsAndTheirBackwards) {
  run_ranks(2, [](int rank) {
    auto [mesh, batch, mine, plain, net, alone, optimizer] = make_twins(rank, 2, kUnmerged);
    const auto step = [](torch::nn::Sequential& of, torch::optim::Optimizer& with, const Batch& on,
                         bool first_first) {
      with.zero_grad();
      at::Tensor first = at::mse_loss(of->forward(on.x), on.y);
      at::Tensor second = at::mse_loss(of->forward(on.x * 2), on.y);
      if (!first_first) std::swap(first, second);
      first.backward();
      second.backward();
      with.step();
    };
    for (int i = 0; i < 6; ++i) {
      step(plain, *alone, batch, i % 2 == 0);
      step(net, *optimizer, mine, i % 2 == 0);
      EXPECT_EQ(gathered_memory(mesh).bytes, 0);
    }
    EXPECT_EQ(parameters_differ(*net, *plain), "");
  });
}

/// The last layer's output takes no part in the loss of every other step, and a graph may be gone
/// through twice.
TEST(FullyShardGraphs, BackwardThroughAPartOfTheGraph) {
  run_ranks(3, [](int rank) {
    auto [mesh, batch, mine, plain, net, alone, optimizer] = make_twins(rank, 3, kUnmerged);
    for (int step = 0; step < 6; ++step) {
      const auto go = [&](torch::nn::Sequential& of, const Batch& on) {
        const auto layers = layers_of(of);
        const at::Tensor hidden = layers[1]->forward(at::tanh(layers[0]->forward(on.x)));
        const at::Tensor out = layers[2]->forward(at::tanh(hidden));
        if (step % 2 == 0) {
          hidden.pow(2).mean().backward();
          EXPECT_FALSE(layers[2]->weight.grad().defined());
        } else {
          hidden.pow(2).mean().backward({}, /*retain_graph=*/true);
          at::mse_loss(out, on.y).backward();
        }
      };
      alone->zero_grad();
      optimizer->zero_grad();
      go(plain, batch);
      go(net, batch.part(rank, 3));
      EXPECT_EQ(gathered_memory(mesh).bytes, 0) << "step " << step;
      alone->step();
      optimizer->step();
    }
    EXPECT_EQ(parameters_differ(*net, *plain), "");
  });
}

/// A gradient that came before reducing was turned on again is reduced with the backward after
/// that, though this one has none for it.
TEST(FullyShardGraphs, KeptGradientsAreReducedEvenIfNoNewOneComes) {
  run_ranks(2, [](int rank) {
    auto [mesh, batch, mine, plain, net, alone, optimizer] = make_twins(rank, 2, kUnmerged);
    const auto whole = [](torch::nn::Sequential& of, const Batch& on) {
      return at::mse_loss(of->forward(on.x), on.y);
    };
    const auto part = [](torch::nn::Sequential& of, const Batch& on) {
      return layers_of(of)[0]->forward(on.x).pow(2).mean();
    };
    whole(plain, batch).backward();
    part(plain, batch).backward();
    set_requires_gradient_sync(*net, false);
    whole(net, mine).backward();
    EXPECT_FALSE(layers_of(net)[2]->weight.grad().defined());
    set_requires_gradient_sync(*net, true);
    part(net, mine).backward();
    EXPECT_EQ(gradients_differ(*net, *plain), "");
  });
}

/// Evaluation between a forward and its backward; outputs with a graph that no backward goes
/// through.
TEST(FullyShardGraphs, OtherForwardsInTheMiddleOfAStep) {
  run_ranks(2, [](int rank) {
    auto [mesh, batch, mine, plain, net, alone, optimizer] =
        make_twins(rank, 2, kUnmerged, adamw());
    for (int step = 0; step < 6; ++step) {
      train(forward_of(plain), *alone, batch, 1);
      optimizer->zero_grad();
      if (step % 3 == 1) net->forward(mine.x);
      const at::Tensor loss = at::mse_loss(net->forward(mine.x), mine.y);
      if (step % 3 == 2) {
        const torch::NoGradGuard no_grad;
        EXPECT_EQ(at::mse_loss(net->forward(mine.x), mine.y).item<double>(), loss.item<double>());
      }
      loss.backward();
      optimizer->step();
      EXPECT_EQ(gathered_memory(mesh).bytes, 0) << "step " << step;
    }
    EXPECT_EQ(parameters_differ(*net, *plain), "");
  });
}

/// A backward inside of a backward: the gradient of a layer comes twice before it is reduced.
TEST(FullyShardGraphs, GradientsThatComeTwiceAreAdded) {
  for (const int64_t width : {6, 96}) {  // copied, and sent from where they lie
    run_ranks(2, [&](int rank) {
      const DeviceMesh mesh = init_device_mesh("dp=2");
      const Batch batch = make_batch(8, width, width);
      auto plain = make_mlp({width, width, width});
      auto net = make_mlp({width, width, width});
      fully_shard(*net, mesh);
      const auto nested = [](torch::nn::Sequential& of, const Batch& on) {
        const at::Tensor inner = at::mse_loss(of->forward(on.x * 0.5), on.y);
        const at::Tensor hidden = layers_of(of)[0]->forward(on.x);
        hidden.register_hook([&](const at::Tensor& gradient) {
          inner.backward();
          return gradient;
        });
        at::mse_loss(layers_of(of)[1]->forward(at::tanh(hidden)), on.y).backward();
      };
      nested(plain, batch);
      nested(net, batch.part(rank, 2));
      EXPECT_EQ(gradients_differ(*net, *plain), "") << width;
      EXPECT_EQ(gathered_memory(mesh).bytes, 0);
    });
  }
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
    EXPECT_EQ(gradients_differ(*net, *plain), "");
  });
}

/// What was reduced has no graph: said before anything is, and nothing is left of the attempt.
TEST(FullyShardGraphs, GradientsThemselvesHaveNoGraph) {
  run_ranks(2, [](int rank) {
    auto [mesh, batch, mine, plain, net, alone, optimizer] = make_twins(rank, 2);
    const at::Tensor loss = at::mse_loss(net->forward(mine.x), mine.y);
    EXPECT_THROW(loss.backward({}, /*retain_graph=*/true, /*create_graph=*/true), NotSupported);
    at::mse_loss(plain->forward(batch.x), batch.y).backward();
    at::mse_loss(net->forward(mine.x), mine.y).backward();
    EXPECT_EQ(gradients_differ(*net, *plain), "");
    EXPECT_EQ(gathered_memory(mesh).bytes, 0);
  });
}

TEST(FullyShardGraphs, TheBatchOfARankMayBeEmpty) {
  run_ranks(2, [](int rank) {
    auto [mesh, batch, mine, plain, net, alone, optimizer] = make_twins(rank, 2, kUnmerged);
    const at::Tensor all_or_none = batch.x.narrow(0, 0, rank == 0 ? batch.x.size(0) : 0);
    for (int step = 0; step < 3; ++step) {
      alone->zero_grad();
      optimizer->zero_grad();
      plain->forward(batch.x).sum().backward();
      (net->forward(all_or_none).sum() * 2).backward();  // a mean over two ranks
      EXPECT_EQ(gradients_differ(*net, *plain), "") << "step " << step;
      alone->step();
      optimizer->step();
    }
    EXPECT_EQ(parameters_differ(*net, *plain), "");
  });
}

}  // namespace graphs_test
}  // namespace tessera::test
