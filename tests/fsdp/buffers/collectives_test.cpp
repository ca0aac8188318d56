// Collectives of the program's own, and by what gradients are divided.
#include "tessera/fsdp/buffers/collectives.h"

#include <ATen/ops/empty.h>
#include <gtest/gtest.h>

#include "tessera/base/errors.h"
#include "tessera/comm/threads.h"
#include "tessera/comm/world.h"
#include "tessera/fsdp/fully_shard.h"
#include "tessera/observe/recorder.h"
#include "tests/fsdp/training.h"

namespace tessera {
namespace collectives_test {

using comm::CommOp;
using comm::init_device_mesh;
using comm::Recorder;
using comm::run_ranks;
using test::adamw;
using test::Batch;
using test::forward_of;
using test::layers_of;
using test::make_batch;
using test::make_mlp;
using test::parameters_differ;
using test::train;

const std::vector<int64_t> kWidths = {6, 80, 70, 3};  // small and large parameters

/// Counts what it is called for, and lets the library's own do it.
struct Counting {
  int gathers = 0, scatters = 0, reduces = 0, allocations = 0;

  Collectives collectives() {
    Collectives own;
    own.all_gather = [this](Tensors& out, Tensors& in, const comm::Group& group, bool async) {
      ++gathers;
      for (size_t i = 0; i < in.size(); ++i) {
        EXPECT_EQ(out[i].numel(), in[i].numel() * group.size());
      }
      return default_all_gather(out, in, group, async);
    };
    own.reduce_scatter = [this](Tensors& out, Tensors& in, const comm::Group& group, bool async) {
      ++scatters;
      default_reduce_scatter(out, in, group, async)->wait();
      return WorkPtr();
    };
    own.all_reduce = [this](Tensors& tensors, const comm::Group* replicas, bool async) {
      ++reduces;
      return default_all_reduce(tensors, replicas, async);
    };
    own.allocate = [this](int64_t bytes, c10::Device device) {
      ++allocations;
      return at::empty({bytes}, at::TensorOptions(at::kByte).device(device));
    };
    return own;
  }
};

void trains_with_own(const char* text, int ranks) {
  const Batch batch = make_batch(12, kWidths.front(), kWidths.back());
  run_ranks(ranks, [&](int rank) {
    const DeviceMesh mesh = init_device_mesh(text);
    auto plain = make_mlp(kWidths);
    auto alone = adamw()(plain->parameters());
    train(forward_of(plain), *alone, batch, 5);
    auto net = make_mlp(kWidths);
    fully_shard(*net, mesh);
    Counting counting;
    set_collectives(*net, counting.collectives());
    auto optimizer = adamw()(net->parameters());
    train(forward_of(net), *optimizer, batch.part(rank, ranks), 5);
    EXPECT_EQ(parameters_differ(*net, *plain), "") << text;
    EXPECT_EQ(counting.gathers, 5) << text;
    EXPECT_EQ(counting.scatters, 5) << text;
    EXPECT_EQ(counting.reduces, 5) << text;
    EXPECT_GT(counting.allocations, 10) << text;
    set_collectives(*net, {});
    train(forward_of(net), *optimizer, batch.part(rank, ranks), 1);
    EXPECT_EQ(counting.gathers, 5) << text;
  });
}

TEST(FullyShardCollectives, MayBeTheProgramsOwn) {
  trains_with_own("dp=3", 3);
  trains_with_own("dp=2,fs=2", 4);
}

/// Gradients summed over an axis that fully_shard does not know of, in all_reduce.
TEST(FullyShardCollectives, AnAllReduceOfOnesOwnAddsAnAxis) {
  run_ranks(4, [](int rank) {
    const DeviceMesh mesh = init_device_mesh("dp=2,fs=2");
    const Batch batch = make_batch(8, kWidths.front(), kWidths.back());
    const Batch mine = batch.part(rank, 4);
    auto plain = make_mlp(kWidths);
    at::mse_loss(plain->forward(batch.x), batch.y).backward();
    auto net = make_mlp(kWidths);
    fully_shard(*net, mesh["fs"], {.gradient_divide_factor = 4});
    Collectives own;
    own.all_reduce = [&](Tensors& tensors, const comm::Group* replicas, bool async) {
      EXPECT_EQ(replicas, nullptr);
      return default_all_reduce(tensors, comm::group_of(mesh, "dp").get(), async);
    };
    set_collectives(*net, own);
    at::mse_loss(net->forward(mine.x), mine.y).backward();
    EXPECT_EQ(test::gradients_differ(*net, *plain), "");
  });
}

/// A gather that travels as float16 and arrives as what is left of the values.
TEST(FullyShardCollectives, WhatArrivesIsWhatTheFunctionMakes) {
  run_ranks(2, [](int) {
    const DeviceMesh mesh = init_device_mesh("dp=2");
    auto net = make_mlp({4, 3});
    auto rounded = make_mlp({4, 3});
    rounded->to(at::kHalf);
    rounded->to(at::kDouble);
    fully_shard(*net, mesh);
    Collectives own;
    own.all_gather = [](Tensors& out, Tensors& in, const comm::Group& group, bool) {
      for (size_t i = 0; i < in.size(); ++i) {
        Tensors sent = {in[i].to(at::kHalf)};
        Tensors got = {at::empty({out[i].numel()}, sent[0].options())};
        default_all_gather(got, sent, group, /*async=*/false)->wait();
        out[i].copy_(got[0]);
      }
      return WorkPtr();
    };
    set_collectives(*net, own);
    const at::Tensor x = at::ones({2, 4}, at::kDouble);
    EXPECT_TRUE(at::allclose(net->forward(x).detach(), rounded->forward(x).detach(), 1e-12, 1e-12));
  });
}

TEST(FullyShardCollectives, OneThatThrowsLeavesTheGroupUsable) {
  run_ranks(2, [](int rank) {
    auto [mesh, batch, mine, plain, net, alone, optimizer] = test::make_twins(rank, 2);
    const auto loss = [&] { return at::mse_loss(net->forward(mine.x), mine.y); };
    loss().backward();
    const at::Tensor want = full_tensor(layers_of(net)[0]->weight.grad()).clone();
    Collectives own;
    own.all_gather = [](Tensors&, Tensors&, const comm::Group&, bool) -> WorkPtr {
      throw InvalidArgument("a gather of the test");
    };
    set_collectives(*net, own);
    EXPECT_THROW(loss(), InvalidArgument);
    own = {};
    own.reduce_scatter = [](Tensors&, Tensors&, const comm::Group&, bool) -> WorkPtr {
      throw InvalidArgument("a reduce_scatter of the test");
    };
    set_collectives(*net, own);
    EXPECT_ANY_THROW(loss().backward());
    set_collectives(*net, {});
    net->zero_grad();
    loss().backward();
    EXPECT_TRUE(at::allclose(full_tensor(layers_of(net)[0]->weight.grad()), want, 1e-12, 1e-12));
    EXPECT_EQ(gathered_memory(mesh).bytes, 0);
  });
}

/// A message that turns out to have failed when it is waited for.
struct FailedWork : c10d::Work {
  bool wait(std::chrono::milliseconds) override { throw InvalidArgument("a wait of the test"); }
};

TEST(FullyShardCollectives, OneThatFailsWhileItIsUnderWayLeavesTheGroupUsable) {
  run_ranks(2, [](int rank) {
    auto [mesh, batch, mine, plain, net, alone, optimizer] =
        test::make_twins(rank, 2, test::kUnmerged);
    const auto loss = [&] { return at::mse_loss(net->forward(mine.x), mine.y); };
    at::mse_loss(plain->forward(batch.x), batch.y).backward();
    const auto fails = [](Tensors&, Tensors&, const comm::Group&, bool) -> WorkPtr {
      return c10::make_intrusive<FailedWork>();
    };
    Collectives own;
    for (const bool gather : {true, false}) {
      (gather ? own.all_gather : own.reduce_scatter) = fails;
      set_collectives(*net, own);
      EXPECT_ANY_THROW(loss().backward());
      own = {};
      set_collectives(*net, own);
      net->zero_grad();
      loss().backward();
      EXPECT_EQ(test::gradients_differ(*net, *plain), "") << gather;
      EXPECT_EQ(gathered_memory(mesh).bytes, 0);
    }
  });
}

/// The gradient of a sum of ones over 4 ranks, divided as the options say.
double gradient_of_ones(const FullyShardOptions& options, at::ScalarType dtype, double scale) {
  double out = 0;
  run_ranks(4, [&](int rank) {
    const DeviceMesh mesh = init_device_mesh("dp=4");
    auto net = make_mlp({4, 4});
    net->to(dtype);
    fully_shard(*net, mesh, options);
    (net->forward(at::ones({1, 4}, dtype)).sum() * scale).backward();
    const at::Tensor grad = full_tensor(layers_of(net)[0]->weight.grad());
    EXPECT_TRUE(at::equal(grad, grad[0][0].expand_as(grad)));
    if (rank == 0) out = grad[0][0].item<double>();
  });
  return out;
}

TEST(FullyShardCollectives, GradientsAreDividedAsAskedFor) {
  EXPECT_EQ(gradient_of_ones({}, at::kDouble, 1), 1);
  EXPECT_EQ(gradient_of_ones({.gradient_divide_factor = 1}, at::kDouble, 1), 4);
  EXPECT_EQ(gradient_of_ones({.gradient_divide_factor = 16}, at::kDouble, 1), 0.25);
  EXPECT_EQ(gradient_of_ones({.gradient_divide_factor = 8, .gradient_predivide_factor = 2},
                             at::kDouble, 1),
            0.5);
  EXPECT_THROW(gradient_of_ones({.gradient_predivide_factor = 0}, at::kDouble, 1), std::exception);
}

/// 4 times 30,000 is not a float16; the mean is.
TEST(FullyShardCollectives, AMeanInFloat16DoesNotOverflow) {
  const MixedPrecisionPolicy half = {.reduce_dtype = at::kHalf};
  EXPECT_EQ(gradient_of_ones({.mp_policy = half}, at::kFloat, 30000), 30000);
  EXPECT_TRUE(std::isinf(
      gradient_of_ones({.gradient_predivide_factor = 1, .mp_policy = half}, at::kFloat, 30000)));
}

}  // namespace collectives_test
}  // namespace tessera
