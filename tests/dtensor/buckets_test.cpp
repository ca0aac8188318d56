// Many small tensors in few messages: the values are those of one message each.
#include "tessera/dtensor/buckets.h"

#include <gtest/gtest.h>
#include <torch/autograd.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/sgd.h>

#include "tessera/comm/threads.h"
#include "tessera/dtensor/dtensor.h"
#include "tessera/module/distribute_module.h"
#include "tessera/observe/recorder.h"
#include "tests/support/parts.h"
#include "tests/support/ranks.h"
#include "tests/support/training.h"
#include "tests/support_pure/random_shardings.h"

namespace tessera {
namespace buckets_test {

using comm::init_device_mesh;
using comm::Recorder;
using test::for_each_seed;
using test::Rng;
using test::run_ranks;
using test::test_numbers;
using test::whole_numbers;

struct Drawn {
  std::vector<at::Tensor> fulls;
  std::vector<Sharding> shardings;
};

Drawn draw(Rng& rng, const DeviceMesh& mesh) {
  Drawn out;
  const int count = rng.int_between(1, 8);
  for (int i = 0; i < count; ++i) {
    const auto shape = test::random_shape(rng, 3, 100);
    const auto dtype = rng.chance(70) ? at::kDouble : at::kFloat;
    out.fulls.push_back(whole_numbers(shape, rng.next()).to(dtype));
    out.shardings.push_back(test::random_sharding(rng, mesh, shape, {.partial = false})
                                .with_dtype(static_cast<DType>(dtype)));
  }
  return out;
}

TEST(Buckets, ScatterAndGatherAnyShardings) {
  for (const char* axes : {"a=6", "a=2,b=3", "a=3,b=1,c=2"}) {
    run_ranks(6, [&](int rank) {
      const DeviceMesh mesh = init_device_mesh(axes);
      for_each_seed(40, [&](Rng& rng) {
        const Drawn drawn = draw(rng, mesh);
        const int source = rng.int_between(0, 5);
        std::vector<at::Tensor> given;
        for (const at::Tensor& full : drawn.fulls) {
          given.push_back(mesh.ranks()[static_cast<size_t>(source)] == rank ? full : full + 1);
        }
        const auto parts = dtensor::scatter_all_from(given, source, drawn.shardings);
        std::vector<at::Tensor> tensors;
        for (size_t i = 0; i < parts.size(); ++i) {
          const Sharding& as = drawn.shardings[i];
          ASSERT_TRUE(at::equal(parts[i], test::part_of(drawn.fulls[i], as, *mesh.my_coordinate())))
              << as.to_text();
          const std::vector<Placement> whole(static_cast<size_t>(mesh.ndim()));
          tensors.push_back(redistribute(distribute_tensor(drawn.fulls[i], mesh, whole), as));
        }
        std::vector<at::Tensor> got(tensors.size());
        dtensor::gather_full_tensors(tensors, [&](size_t i, at::Tensor full) { got[i] = full; });
        for (size_t i = 0; i < got.size(); ++i) {
          ASSERT_TRUE(at::equal(got[i], drawn.fulls[i])) << drawn.shardings[i].to_text();
        }
      });
    });
  }
}

TEST(Buckets, OneMessageCarriesManyTensors) {
  run_ranks(2, [](int rank) {
    const DeviceMesh mesh = init_device_mesh("dp=2");
    std::vector<at::Tensor> fulls;
    std::vector<Sharding> shardings;
    for (int i = 0; i < 100; ++i) {
      fulls.push_back(whole_numbers({5, 3}, static_cast<uint64_t>(i)));
      shardings.emplace_back(mesh, std::vector{Shard(0)}, std::vector<int64_t>{5, 3},
                             ShardingOptions{.dtype = DType::f64});
    }
    Recorder recorder(*comm::current_world());
    const auto parts = dtensor::scatter_all_from(fulls, 0, shardings);
    EXPECT_EQ(recorder.count(), 1) << recorder.to_text();
    std::vector<at::Tensor> tensors;
    for (const at::Tensor& full : fulls) {
      tensors.push_back(distribute_tensor(full, mesh, {Shard(0)}, {.source = std::nullopt}));
    }
    recorder.clear();
    dtensor::gather_full_tensors(
        tensors, rank == 0 ? dtensor::TakeFull([](size_t, at::Tensor) {}) : dtensor::TakeFull());
    EXPECT_EQ(recorder.count(), 1) << recorder.to_text();
  });
}

/// Layers beside each other, replicated; the batch is sharded, so gradients are Partial.
struct Wide : torch::nn::Module {
  explicit Wide(int count) {
    for (int i = 0; i < count; ++i) {
      layers.push_back(register_module("l" + std::to_string(i), torch::nn::Linear(3, 4)));
    }
    to(at::kDouble);
    uint64_t seed = 1;
    const torch::NoGradGuard no_grad;
    for (const at::Tensor& p : parameters()) p.copy_(test_numbers(p.sizes().vec(), seed++));
  }
  at::Tensor forward(const at::Tensor& x) {
    at::Tensor sum = layers[0]->forward(x);
    for (size_t i = 1; i < layers.size(); ++i) sum = sum + at::tanh(layers[i]->forward(x));
    return sum.square().mean();
  }
  std::vector<torch::nn::Linear> layers;
};

TEST(Buckets, ReduceGradientsSendsOneMessageForAll) {
  run_ranks(4, [](int) {
    const DeviceMesh mesh = init_device_mesh("dp=2,tp=2");
    const at::Tensor x = test_numbers({8, 3}, 1);
    const auto plain = std::make_shared<Wide>(20);
    const auto net = std::make_shared<Wide>(20);
    distribute_module(*net, mesh,
                      [](const std::string&, torch::nn::Module& module, const auto& on) {
                        if (auto* linear = module.as<torch::nn::Linear>()) {
                          distribute_(linear->weight, on, {Replicate(), Shard(0)});
                          distribute_(linear->bias, on, {Replicate(), Shard(0)});
                        }
                      });
    reduce_gradients(*net);
    const at::Tensor mine = distribute_tensor(x, mesh, {Shard(0), Replicate()});
    torch::optim::SGD alone(plain->parameters(), torch::optim::SGDOptions(0.1).momentum(0.9));
    torch::optim::SGD optimizer(net->parameters(), torch::optim::SGDOptions(0.1).momentum(0.9));
    for (int step = 0; step < 3; ++step) {
      alone.zero_grad();
      optimizer.zero_grad();
      plain->forward(x).backward();
      const at::Tensor loss = net->forward(mine);
      Recorder recorder(*comm::current_world());
      loss.backward();
      EXPECT_LE(recorder.count(), 3) << recorder.to_text();
      for (const auto& item : net->named_parameters()) {
        const at::Tensor grad = item.value().grad();
        ASSERT_EQ(sharding(grad).placements_text(), sharding(item.value()).placements_text());
        ASSERT_TRUE(at::allclose(full_tensor(grad), plain->named_parameters()[item.key()].grad()));
      }
      recorder.stop();
      alone.step();
      optimizer.step();
    }
    // Twice without a reset: what comes is added to what is placed.
    plain->forward(x).backward();
    net->forward(mine).backward();
    for (const auto& item : net->named_parameters()) {
      ASSERT_TRUE(at::allclose(full_tensor(item.value().grad()),
                               plain->named_parameters()[item.key()].grad()));
    }
    const auto asked = torch::autograd::grad({net->forward(mine)}, {net->layers[0]->weight});
    EXPECT_EQ(sharding(asked[0]).placements_text(), "R,S0");
  });
}

}  // namespace buckets_test
}  // namespace tessera
