// Ranks whose backward uses no parameter take part in that of the others; a rank that skips a
// backward is an error on every rank.
#include "tessera/base/errors.h"
#include "tessera/comm/processes.h"
#include "tessera/comm/world.h"
#include "tessera/fsdp/order/rank_agreement.h"
#include "tessera/fsdp/sharded_module.h"
#include "tests/fsdp/training.h"
#include "tests/support/processes.h"

namespace tessera::test {
namespace skipped_backward_test {

constexpr int kWidth = 4;
constexpr int kLayers = 2;

/// Layers of which any may be skipped, also all.
struct SkippingImpl : torch::nn::Module {
  SkippingImpl() {
    uint64_t seed = 1;
    for (int i = 0; i < kLayers; ++i) {
      layers.push_back(
          register_module("layer" + std::to_string(i), torch::nn::Linear(kWidth, kWidth)));
      layers.back()->to(at::kDouble);
      const torch::NoGradGuard no_grad;
      for (const at::Tensor& p : layers.back()->parameters()) {
        p.copy_(test_numbers(p.sizes().vec(), seed++));
      }
    }
  }
  at::Tensor forward(at::Tensor x, int subset) {
    for (int i = 0; i < kLayers; ++i) {
      if ((subset >> i & 1) != 0) x = x + at::tanh(layers[static_cast<size_t>(i)]->forward(x));
    }
    return x;
  }
  std::vector<torch::nn::Linear> layers;
};
TORCH_MODULE(Skipping);

/// By step, by micro-batch, by rank: the layers that are used.
using Plan = std::vector<std::vector<std::vector<int>>>;
using Net = BorderedModule<Skipping>;

Net shard(Skipping model, const DeviceMesh& mesh) {
  for (auto& layer : model->layers) fully_shard(*layer, mesh, kUnmerged);
  Net net = fully_shard(model, mesh);
  set_reduce_unused_parameters(*net, true);
  return net;
}

at::Tensor input(int64_t rank, size_t step, size_t micro) {
  const uint64_t seed = 5 + 100 * static_cast<uint64_t>(rank) + 10 * step + micro;
  return test_numbers({3, kWidth}, seed).requires_grad_();
}

at::Tensor loss_of(const at::Tensor& output) { return output.square().mean(); }

std::unique_ptr<torch::optim::Optimizer> plain_sgd(const std::vector<at::Tensor>& list) {
  return std::make_unique<torch::optim::SGD>(list, torch::optim::SGDOptions(0.1));
}

enum class Sync { each, last };

/// Compares the gradients of every step with those of one rank that computes all ranks' losses. A
/// group that no rank uses has no gradient on one side, and zeros may stand for none on the other.
void trains_as_one_rank(const char* axes, int rank, const Plan& plan, Sync sync) {
  const DeviceMesh mesh = init_device_mesh(axes);
  const auto ranks = static_cast<int64_t>(plan[0][0].size());
  Skipping plain, model;
  Net net = shard(model, mesh);
  const auto alone = plain_sgd(plain->parameters());
  const auto optimizer = plain_sgd(net->parameters());
  for (size_t step = 0; step < plan.size(); ++step) {
    alone->zero_grad();
    optimizer->zero_grad();
    for (size_t micro = 0; micro < plan[step].size(); ++micro) {
      const auto& subsets = plan[step][micro];
      for (int64_t r = 0; r < ranks; ++r) {
        const at::Tensor out =
            plain->forward(input(r, step, micro), subsets[static_cast<size_t>(r)]);
        (loss_of(out) / static_cast<double>(ranks)).backward();
      }
      if (sync == Sync::last) {
        set_requires_gradient_sync(*net, micro + 1 == plan[step].size());
      }
      const int subset = subsets[static_cast<size_t>(rank)];
      loss_of(net(input(rank, step, micro), subset)).backward();
    }
    for (const auto& item : net->named_parameters()) {
      const at::Tensor want = plain->named_parameters()[item.key()].grad();
      const at::Tensor& got = item.value().grad();
      if (!got.defined()) {
        ASSERT_FALSE(want.defined()) << "step " << step << ", " << item.key();
        continue;
      }
      const at::Tensor full = full_tensor(got);
      ASSERT_TRUE(at::allclose(full, want.defined() ? want : at::zeros_like(full), 1e-10, 1e-12))
          << "step " << step << ", " << item.key();
    }
    alone->step();
    optimizer->step();
  }
  ASSERT_EQ(parameters_differ(*net, *plain), "");
  ASSERT_EQ(gathered_memory(mesh).bytes, 0);
}

/// One micro-batch a step.
Plan steps(const std::vector<std::vector<int>>& subsets) {
  Plan out;
  for (const auto& step : subsets) out.push_back({step});
  return out;
}

const Plan kEachSkipsOnce = steps({{3, 3}, {0, 3}, {3, 3}, {3, 0}, {3, 3}});
const Plan kOneSkips = steps({{3, 3}, {0, 1}, {0, 2}, {0, 0}, {3, 3}, {0, 3}});
const Plan kAccumulates = {{{3, 3}, {1, 2}}, {{0, 3}, {3, 1}}, {{3, 3}, {3, 0}}, {{0, 3}, {0, 3}}};

void all_plans_train_as_one_rank(int rank) {
  trains_as_one_rank("dp=2", rank, kEachSkipsOnce, Sync::each);
  trains_as_one_rank("dp=2", rank, kOneSkips, Sync::each);
  trains_as_one_rank("dp=2", rank, kAccumulates, Sync::each);
  trains_as_one_rank("dp=2", rank, kAccumulates, Sync::last);
}

TEST(SkippedBackward, OneThatUsesNoParameterServesTheOthers) {
  run_ranks(2, all_plans_train_as_one_rank);
}

TEST(SkippedBackward, SoItDoesOnTwoAxes) {
  run_ranks(4, [](int rank) {
    const Plan plan = steps({{0, 3, 3, 3}, {3, 0, 0, 1}, {3, 3, 3, 3}, {0, 0, 0, 2}, {0, 3, 0, 3}});
    trains_as_one_rank("dp=2,fs=2", rank, plan, Sync::each);
  });
}

/// x is not an output that has a graph: what was skipped returns it as it is.
TEST(SkippedBackward, AnInputThatIsReturnedKeepsNoHook) {
  run_ranks(2, [](int rank) {
    Net net = shard(Skipping(), init_device_mesh("dp=2"));
    const at::Tensor x = input(rank, 0, 0);
    for (int step = 0; step < 3; ++step) loss_of(net(x, rank == 0 ? 0 : 3)).backward();
    loss_of(x * 2).backward();  // of this rank alone
    if (rank == 0) loss_of(x * 2).backward();
    loss_of(net(x, 3)).backward();
  });
}

TEST(SkippedBackward, ARankMayRunMoreForwardsThanAnother) {
  run_ranks(2, [](int rank) {
    Net net = shard(Skipping(), init_device_mesh("dp=2"));
    for (size_t step = 0; step < 3; ++step) {
      at::Tensor sum = loss_of(net(input(rank, step, 0), rank));
      for (int i = 0; i < 2 * rank; ++i) sum = sum + loss_of(net(input(rank, step, 1), 3));
      {
        const torch::NoGradGuard no_grad;
        for (int i = 0; i < 2 - rank; ++i) net(input(rank, step, 2), 3);
      }
      sum.backward();
    }
  });
}

TEST(SkippedBackward, AGraphMayBeUsedTwiceAndItsOutputsOneAfterTheOther) {
  run_ranks(2, [](int rank) {
    Net net = shard(Skipping(), init_device_mesh("dp=2"));
    for (size_t step = 0; step < 2; ++step) {
      const at::Tensor first = loss_of(net(input(rank, step, 0), rank == 0 ? 0 : 3));
      const at::Tensor second = loss_of(net(input(rank, step, 1), rank == 0 ? 3 : 0));
      first.backward({}, /*keep_graph=*/true);
      second.backward();
      first.backward();
    }
    full_state_dict(*net);
  });
}

/// Reentrant: a backward in a backward.
TEST(SkippedBackward, RecomputationMayUseNoParameter) {
  run_ranks(2, [](int rank) {
    Net net = shard(Skipping(), init_device_mesh("dp=2"));
    Skipping plain;
    for (size_t step = 0; step < 3; ++step) {
      plain->zero_grad();
      net->zero_grad();
      const auto subset_of = [&](int r) { return r == static_cast<int>(step % 2) ? 0 : 3; };
      for (int r = 0; r < 2; ++r) {
        at::Tensor x = input(r, step, 0);
        for (int i = 0; i < 2; ++i) x = plain->forward(x, subset_of(r)) * 2;
        (loss_of(x) / 2).backward();
      }
      const Forward forward = [&](const at::Tensor& x) { return net(x, subset_of(rank)); };
      at::Tensor x = input(rank, step, 0);
      for (int i = 0; i < 2; ++i) x = Recompute::apply(x, &forward) * 2;
      loss_of(x).backward();
      EXPECT_EQ(gradients_differ(*net, *plain), "") << "step " << step;
    }
  });
}

/// "" if it does not throw InvalidArgument.
std::string error_of(const std::function<void()>& train) {
  try {
    train();
  } catch (const InvalidArgument& error) {
    return error.what();
  }
  return "";
}

/// In step 1 of 4, rank 0 leaves out its backward; in step 2 rank 1 does, which nothing follows.
std::string error_of_skipping(int rank, int subset) {
  return error_of([&] {
    Net net = shard(Skipping(), init_device_mesh("dp=2"));
    const auto optimizer = plain_sgd(net->parameters());
    at::Tensor loss;
    for (size_t step = 0; step < 4; ++step) {
      const bool skips = step == static_cast<size_t>(1 + rank);
      loss = loss_of(net(input(rank, step, 0).detach(), skips ? subset : 3));
      if (!skips) loss.backward();
      optimizer->step();
      optimizer->zero_grad();
    }
  });
}

void skipping_is_an_error(int rank) {
  const std::string unused = error_of_skipping(rank, 0);
  EXPECT_TRUE(
      unused.starts_with("rank 0 has skipped a backward: since the last one, rank 0 ran 2 "
                         "forwards (1 without a backward), rank 1 ran 1 (0 without)"))
      << unused;
  EXPECT_NE(unused.find("0 * p.sum()"), std::string::npos) << unused;
}

TEST(SkippedBackward, ARankThatSkipsOneIsAnErrorOnEveryRank) { run_ranks(2, skipping_is_an_error); }

/// As where a loss is not finite: the layers are used, the loss is dropped.
TEST(SkippedBackward, SoIsALossThatIsDropped) {
  run_ranks(2, [](int rank) {
    const std::string error = error_of_skipping(rank, 3);
    EXPECT_TRUE(error.starts_with("rank 0 has skipped a backward")) << error;
  });
}

TEST(SkippedBackward, AfterwardsTheGroupsAreUsable) {
  run_ranks(2, [](int rank) {
    Net net = shard(Skipping(), init_device_mesh("dp=2"));
    EXPECT_NE(error_of([&] {
                if (rank == 1) net(input(rank, 0, 0).detach(), 0);
                loss_of(net(input(rank, 0, 0), 3)).backward();
              }),
              "");
    for (const at::Tensor& p : net->parameters()) EXPECT_FALSE(p.grad().defined());
    loss_of(net(input(rank, 0, 0), 3)).backward();
    for (const at::Tensor& p : net->parameters()) EXPECT_TRUE(p.grad().defined());
  });
}

/// What pairs up with the last backward of the others is another collective.
TEST(SkippedBackward, TheLastOneIsAnErrorAtTheNextCollective) {
  EXPECT_THROW(run_ranks(2,
                         [](int rank) {
                           Net net = shard(Skipping(), init_device_mesh("dp=2"));
                           if (rank == 0) loss_of(net(input(rank, 0, 0), 3)).backward();
                           full_state_dict(*net);
                         }),
               PeerError);
}

TEST(SkippedBackward, ReshardInPlaceOfABackwardIsAnErrorOnEveryRank) {
  run_ranks(2, [](int rank) {
    Net net = shard(Skipping(), init_device_mesh("dp=2"));
    const std::string error = error_of([&] {
      const at::Tensor loss = loss_of(net(input(rank, 0, 0), 3));
      if (rank == 0) loss.backward();
      reshard(*net);
    });
    EXPECT_TRUE(error.starts_with("rank 0 ended a backward while rank 1 called reshard()"))
        << error;
  });
}

const testing::Scenario kTrains("backwards_without_parameters", [] {
  const auto world = comm::process_world();
  all_plans_train_as_one_rank(world->rank());
});
const testing::Scenario kRaises("skipped_backward", [] {
  const auto world = comm::process_world();
  skipping_is_an_error(world->rank());
});

TEST(SkippedBackward, ProcessesTrainAsOneRankOrRaise) {
  EXPECT_EQ(testing::failures(testing::run_processes(kTrains, {.size = 2})), "");
  EXPECT_EQ(testing::failures(testing::run_processes(kRaises, {.size = 2})), "");
}

std::string error_of_ends(const std::vector<fsdp::BackwardEnd>& ends) {
  return error_of([&] { fsdp::check_same_backward(ends, std::vector<int>{4, 5, 6}); });
}

TEST(SkippedBackward, EndsOfOneBackwardMayDifferInForwardsOrInAbandonedOnes) {
  EXPECT_EQ(error_of_ends({{{}, 1, 0}, {{}, 1, 0}, {{}, 1, 0}}), "");
  EXPECT_EQ(error_of_ends({{{}, 3, 0}, {{}, 1, 0}, {{}, 0, 0}}), "");
  EXPECT_EQ(error_of_ends({{{}, 2, 1}, {{}, 2, 0}, {{}, 2, 2}}), "");
  EXPECT_EQ(error_of_ends({{{}, 2, 1}, {{}, 4, 1}, {{}, 3, 1}}), "");
  EXPECT_TRUE(error_of_ends({{{}, 1, 0}, {{}, 2, 1}, {{}, 3, 2}})
                  .starts_with("ranks 5, 6 have skipped a backward: since the last one, rank 5 ran "
                               "2 forwards (1 without a backward), rank 4 ran 1 (0 without)"));
}

TEST(SkippedBackward, EndsOfOneBackwardReduceTheSameGroups) {
  using enum fsdp::BackwardEnd::Flag;
  EXPECT_EQ(error_of_ends({{{kTookPart | kReduces}}, {{kReduces}}, {{0}}}), "");
  EXPECT_EQ(error_of_ends({{{kAccumulates}}, {{kReduces}}, {{kReduces}}}), "");
  EXPECT_TRUE(
      error_of_ends(
          {{{kReduces, kReduces}}, {{kReduces, kTookPart | kAccumulates}}, {{kReduces, kReduces}}})
          .starts_with("backward on ranks 4, 6 reduces the gradients of group 1, on rank 5 "
                       "it keeps them"));
}

}  // namespace skipped_backward_test
}  // namespace tessera::test
