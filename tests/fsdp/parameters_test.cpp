// Parameters of all sorts: unused, frozen, ignored, tied, of no dims, empty; and ops on them.
#include <gtest/gtest.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/normalization.h>

#include "tests/fsdp/training.h"

namespace tessera::test {
namespace parameters_test {

/// A group of which one layer takes part in every other step only; a frozen and an ignored one.
TEST(FullyShardParameters, ParametersMayTakeNoPart) {
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
    fully_shard(*net, mesh, {.ignored_params = {ignored}});
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

/// A group without gradients is gathered and never reduced; it may thaw, and others freeze.
TEST(FullyShardParameters, GroupsMayBeFrozenAndThawed) {
  run_ranks(2, [](int rank) {
    auto [mesh, batch, mine, plain, net, alone, optimizer] = make_twins(rank, 2, kUnmerged);
    Recorder recorder(*comm::current_world());
    for (const size_t frozen : {1, 0, 2}) {
      for (auto* of : {&plain, &net}) {
        for (size_t i = 0; i < 3; ++i) {
          layers_of(*of)[i]->weight.set_requires_grad(i != frozen);
          layers_of(*of)[i]->bias.set_requires_grad(i != frozen);
        }
      }
      for (int step = 0; step < 3; ++step) {
        train(forward_of(plain), *alone, batch, 1);
        recorder.clear();
        train(forward_of(net), *optimizer, batch.part(rank, 2), 1);
        EXPECT_EQ(recorder.count(CommOp::reduce_scatter), 2) << recorder.to_text();
        EXPECT_FALSE(layers_of(net)[frozen]->weight.grad().defined());
        EXPECT_EQ(gathered_memory(mesh).bytes, 0);
      }
    }
    EXPECT_EQ(parameters_differ(*net, *plain), "");
  });
}

/// A weight that one group holds and another group's layer uses too.
TEST(FullyShardParameters, TiedAcrossGroupsTrainAsOneRank) {
  const auto make = [] {
    auto net = make_mlp({6, 6, 6, 6});
    const auto layers = layers_of(net);
    Model model{net.ptr(),
                [net](const Batch& b) mutable { return at::mse_loss(net->forward(b.x), b.y); },
                {}};
    for (const auto& module : net->modules(/*include_self=*/false)) {
      if (module->as<torch::nn::LinearImpl>() != nullptr) model.parts.push_back(module);
    }
    layers[2]->weight = layers[0]->weight;  // the handles that forward uses
    return model;
  };
  const Subject subject = {"tied", make, make_batch(24, 6, 6)};
  for (const bool reshard : {true, false}) {
    trains_as_one_rank(subject, adamw(), {"dp=2", "dp=3", "dp=8"},
                       by_parts({.reshard_after_forward = reshard}));
  }
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
TEST(FullyShardParameters, TiedScalarAndEmptyParametersTrainAsOneRank) {
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

/// A parameter changed by hand while it is gathered: the next use sees it.
TEST(FullyShardParameters, WritesToShardsAreSeen) {
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
TEST(FullyShardParameters, HooksOfParametersRun) {
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
TEST(FullyShardParameters, ParametersInOtherOpsThanLayers) {
  run_ranks(3, [](int rank) {
    auto [mesh, batch, mine, plain, net, alone, optimizer] = make_twins(rank, 3);
    const auto loss = [](torch::nn::Sequential& of, const Batch& on) {
      const at::Tensor w = layers_of(of)[1]->weight;
      at::Tensor extra = w.pow(2).sum() + w[0].exp().sum() + w.view({-1}).narrow(0, 3, 4).sum() +
                         at::cat(w.split(2, 1), 0).tanh().mean();
      for (const auto& p : of->parameters()) extra = extra + p.abs().mean();
      return at::mse_loss(of->forward(on.x), on.y) + extra * 0.1;
    };
    loss(plain, batch).backward();
    loss(net, batch.part(rank, 3)).backward();
    EXPECT_EQ(gradients_differ(*net, *plain), "");
    EXPECT_EQ(gathered_memory(mesh).bytes, 0);
  });
}

/// Views that were made before are recognised; they see the parameter as it is now.
TEST(FullyShardParameters, TheSameViewsAgainSeeOtherValues) {
  using View = std::function<at::Tensor(const at::Tensor&)>;
  const std::vector<View> views = {
      [](const at::Tensor& w) { return w.t(); },
      [](const at::Tensor& w) { return w.t().t(); },
      [](const at::Tensor& w) { return w.narrow(0, 1, 3).t()[2]; },
      [](const at::Tensor& w) { return w.narrow(0, 2, 3).t()[2]; },
      [](const at::Tensor& w) {
        return w.view({3, 10}).select(1, 4);
      },
      [](const at::Tensor& w) {
        return w.view({10, 3}).unsqueeze(1).expand({10, 2, 3});
      },
      [](const at::Tensor& w) {
        return w.as_strided({2, 3}, {7, 2}, 5);
      },
      [](const at::Tensor& w) { return at::view_as_real(w); },
      [](const at::Tensor& w) { return at::view_as_real(w).select(2, 1); },
      [](const at::Tensor& w) { return w.conj().t(); }};
  run_ranks(2, [&](int) {
    const DeviceMesh mesh = init_device_mesh("dp=2");
    const at::Tensor parameter = at::arange(30, at::kDouble).view({5, 6}).to(at::kComplexDouble);
    const std::vector<at::Tensor> list = {parameter};
    fully_shard(list, mesh);
    for (int step = 0; step < 3; ++step) {
      const c10::complex<double> factor(1 + step, 2);
      const at::Tensor now = full_tensor(parameter.detach());
      for (size_t i = 0; i < views.size(); ++i) {
        const at::Tensor want = views[i](now);
        const at::Tensor ones = at::ones(want.sizes(), want.options());  // it asks for the values
        EXPECT_TRUE(at::equal(ones * views[i](parameter), ones * want)) << "view " << i;
      }
      const torch::NoGradGuard no_grad;
      parameter.mul_(factor);
    }
  });
}

}  // namespace parameters_test
}  // namespace tessera::test
