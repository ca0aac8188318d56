// Ranks that use different layers: the collectives of a step do not depend on what a rank skips, or
// skipped before.
#include "tessera/comm/processes.h"
#include "tessera/comm/world.h"
#include "tests/fsdp/training.h"
#include "tests/support/processes.h"
#include "tests/support_pure/property.h"

namespace tessera::test {
namespace skipped_layers_test {

constexpr int kWidth = 4;
constexpr int kSkippable = 2;
constexpr int kSubsets = 1 << kSkippable;

void fill(torch::nn::Module& module) {
  const torch::NoGradGuard no_grad;
  module.to(at::kDouble);
  uint64_t seed = 1;
  for (const at::Tensor& p : module.parameters()) p.copy_(test_numbers(p.sizes().vec(), seed++));
}

/// Layers that may be skipped, and a last one that is always used.
struct SkippingNet : torch::nn::Module {
  SkippingNet() {
    for (int i = 0; i < kSkippable; ++i) {
      layers.push_back(register_module("layer" + std::to_string(i), linear()));
    }
    head = register_module("head", linear());
    fill(*this);
  }
  static torch::nn::Linear linear() { return torch::nn::Linear(kWidth, kWidth); }

  at::Tensor forward(at::Tensor x, int subset) {
    for (int i = 0; i < kSkippable; ++i) {
      if ((subset >> i & 1) != 0) x = x + at::tanh(layers[static_cast<size_t>(i)]->forward(x));
    }
    return head->forward(x).square().mean();
  }

  std::vector<torch::nn::Linear> layers;
  torch::nn::Linear head = nullptr;
};

/// It leaves alone what has no gradient, and changes nothing for zeros.
std::unique_ptr<torch::optim::Optimizer> without_momentum(const std::vector<at::Tensor>& list) {
  return std::make_unique<torch::optim::SGD>(list, torch::optim::SGDOptions(0.1));
}

using ShardNet = std::function<void(SkippingNet&, const DeviceMesh&)>;

void shard_layers_of(SkippingNet& net, const DeviceMesh& mesh, const FullyShardOptions& options) {
  for (auto& layer : net.layers) fully_shard(*layer, mesh, options);
  fully_shard(net, mesh, options);
}

const std::vector<std::pair<const char*, ShardNet>> kWays = {
    {"one group", [](auto& net, const auto& mesh) { fully_shard(net, mesh); }},
    {"a group a layer", [](auto& net, const auto& mesh) { shard_layers_of(net, mesh, kUnmerged); }},
    {"small groups", [](auto& net, const auto& mesh) { shard_layers_of(net, mesh, {}); }},
    {"kept after forward",
     [](auto& net, const auto& mesh) {
       shard_layers_of(net, mesh, {.reshard_after_forward = false});
     }},
    {"replicas", [](auto& net, const auto& mesh) { replicate(net, mesh); }},
};

/// What is undefined on one side may be zeros on the other: a group that any rank used is reduced.
bool same_gradient(const at::Tensor& got, const at::Tensor& want) {
  const at::Tensor full = got.defined() && is_dtensor(got) ? full_tensor(got) : got;
  if (!full.defined()) return !want.defined();
  return at::allclose(full, want.defined() ? want : at::zeros_like(full), 1e-10, 1e-12);
}

/// Trains with subsets[step][rank] of the layers; every step's gradients are those of one rank that
/// computes all ranks' losses.
void trains_with(const ShardNet& shard, const DeviceMesh& mesh, int rank,
                 const std::vector<std::vector<int>>& subsets, const std::string& what) {
  const auto ranks = subsets[0].size();
  const auto plain = std::make_shared<SkippingNet>();
  const auto net = std::make_shared<SkippingNet>();
  shard(*net, mesh);
  set_reduce_unused_parameters(*net, true);
  const auto alone = without_momentum(plain->parameters());
  const auto optimizer = without_momentum(net->parameters());
  for (size_t step = 0; step < subsets.size(); ++step) {
    const at::Tensor x = test_numbers({static_cast<int64_t>(ranks), 3, kWidth}, 5 + step);
    alone->zero_grad();
    optimizer->zero_grad();
    for (size_t r = 0; r < ranks; ++r) {
      const at::Tensor loss = plain->forward(x[static_cast<int64_t>(r)], subsets[step][r]);
      (loss / static_cast<double>(ranks)).backward();
    }
    net->forward(x[rank], subsets[step][static_cast<size_t>(rank)]).backward();
    for (const auto& item : net->named_parameters()) {
      const at::Tensor want = plain->named_parameters()[item.key()].grad();
      ASSERT_TRUE(same_gradient(item.value().grad(), want))
          << what << ", step " << step << ", " << item.key();
    }
    alone->step();
    optimizer->step();
  }
  ASSERT_EQ(parameters_differ(*net, *plain), "") << what;
}

std::string text_of(const std::vector<std::vector<int>>& subsets) {
  std::string out;
  for (const auto& step : subsets) {
    for (const int subset : step) out += std::to_string(subset);
    out += ' ';
  }
  return out;
}

TEST(SkippedLayers, AllPatternsOfTwoStepsTrainAsOneRank) {
  for (const auto& [name, shard] : kWays) {
    run_ranks(2, [&](int rank) {
      const DeviceMesh mesh = init_device_mesh("dp=2");
      for (int code = 0; code < kSubsets * kSubsets * kSubsets * kSubsets; ++code) {
        if (!in_sample(code)) continue;
        const std::vector<std::vector<int>> subsets = {
            {code % 4, code / 4 % 4}, {code / 16 % 4, code / 64 % 4}, {kSubsets - 1, kSubsets - 1}};
        trains_with(shard, mesh, rank, subsets, std::string(name) + ", " + text_of(subsets));
        if (::testing::Test::HasFatalFailure()) return;
      }
    });
  }
}

std::vector<std::vector<int>> random_subsets(Rng& rng, size_t steps, size_t ranks) {
  std::vector<std::vector<int>> out(steps, std::vector<int>(ranks));
  for (auto& step : out) {
    for (int& subset : step) subset = rng.int_between(0, kSubsets - 1);
  }
  return out;
}

TEST(SkippedLayers, LongerPatternsTrainAsOneRankOnMoreRanks) {
  for (const char* text : {"dp=3", "dp=2,fs=2"}) {
    const int ranks = DeviceMesh::parse(text).size();
    for (const auto& [name, shard] : kWays) {
      if (std::string(name) == "replicas" && ranks == 4) continue;  // of one axis
      run_ranks(ranks, [&](int rank) {
        const DeviceMesh mesh = init_device_mesh(text);
        for_each_seed(10, [&](Rng& rng) {
          const auto subsets = random_subsets(rng, 6, static_cast<size_t>(ranks));
          trains_with(shard, mesh, rank, subsets, std::string(name) + ", " + text_of(subsets));
        });
      });
    }
  }
}

const testing::Scenario kProcesses("skip_layers", [] {
  const auto world = comm::process_world();
  const DeviceMesh mesh = init_device_mesh("dp=2");
  for (const auto& [name, shard] : kWays) {
    for_each_seed(12, [&, &shard = shard, &name = name](Rng& rng) {
      const auto subsets = random_subsets(rng, 4, 2);
      trains_with(shard, mesh, world->rank(), subsets, std::string(name) + ", " + text_of(subsets));
    });
  }
});

TEST(SkippedLayers, ProcessesTrainAsOneRank) {
  EXPECT_EQ(testing::failures(testing::run_processes(kProcesses, {.size = 2})), "");
}

/// Rows go to their two best experts; experts without rows are not called.
struct TopTwo : torch::nn::Module {
  static constexpr int kExperts = 4;
  TopTwo() {
    gate = register_module("gate", torch::nn::Linear(kWidth, kExperts));
    for (int i = 0; i < kExperts; ++i) {
      experts.push_back(register_module("expert" + std::to_string(i), SkippingNet::linear()));
    }
    fill(*this);
  }
  at::Tensor forward(const at::Tensor& x) {
    const auto [weights, chosen] = at::softmax(gate->forward(x), -1).topk(2, -1);
    at::Tensor out = at::zeros_like(x);
    for (int64_t e = 0; e < kExperts; ++e) {
      const auto places = (chosen == e).nonzero();
      if (places.size(0) == 0) continue;
      const at::Tensor rows = places.select(1, 0);
      const at::Tensor scale = weights.index({rows, places.select(1, 1)}).unsqueeze(-1);
      const at::Tensor made = experts[static_cast<size_t>(e)]->forward(x.index_select(0, rows));
      out = out.index_add(0, rows, made * scale);
    }
    return out.square().mean();
  }
  torch::nn::Linear gate = nullptr;
  std::vector<torch::nn::Linear> experts;
};

TEST(SkippedLayers, AMixtureOfExpertsMaySkipEmptyExperts) {
  for (const bool group_an_expert : {false, true}) {
    run_ranks(2, [&](int rank) {
      const DeviceMesh mesh = init_device_mesh("dp=2");
      const auto plain = std::make_shared<TopTwo>();
      const auto net = std::make_shared<TopTwo>();
      if (group_an_expert) {
        for (auto& expert : net->experts) fully_shard(*expert, mesh);
      }
      fully_shard(*net, mesh);
      set_reduce_unused_parameters(*net, true);
      const auto alone = without_momentum(plain->parameters());
      const auto optimizer = without_momentum(net->parameters());
      for (int step = 0; step < 8; ++step) {
        const at::Tensor x = test_numbers({2, 2, kWidth}, 20 + static_cast<uint64_t>(step)) * 3;
        alone->zero_grad();
        optimizer->zero_grad();
        for (int r = 0; r < 2; ++r) (plain->forward(x[r]) / 2.0).backward();
        net->forward(x[rank]).backward();
        for (const auto& item : net->named_parameters()) {
          const at::Tensor want = plain->named_parameters()[item.key()].grad();
          ASSERT_TRUE(same_gradient(item.value().grad(), want)) << "step " << step << item.key();
        }
        optimizer->zero_grad();
        alone->zero_grad();
        const torch::NoGradGuard no_grad;  // evaluation skips experts as well
        const double want = plain->forward(x[rank]).item<double>();
        EXPECT_NEAR(net->forward(x[rank]).item<double>(), want, 1e-12);
        reshard(*net);
      }
    });
  }
}

TEST(SkippedLayers, LayersAreNotAgreedOnAnyMoreWhenItIsOff) {
  run_ranks(2, [](int rank) {
    auto [mesh, batch, mine, plain, net, alone, optimizer] = make_twins(rank, 2, kUnmerged);
    set_reduce_unused_parameters(*net, true);
    train(forward_of(plain), *alone, batch, 2);
    train(forward_of(net), *optimizer, mine, 2);
    set_reduce_unused_parameters(*net, false);
    train(forward_of(plain), *alone, batch, 3);
    train(forward_of(net), *optimizer, mine, 3);
    EXPECT_EQ(parameters_differ(*net, *plain), "");
    EXPECT_EQ(gathered_memory(mesh).bytes, 0);
  });
}

}  // namespace skipped_layers_test
}  // namespace tessera::test
