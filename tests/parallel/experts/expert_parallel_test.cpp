#include "tessera/parallel/experts/expert_parallel.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/allclose.h>
#include <ATen/ops/silu.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>
#include <torch/nn/module.h>
#include <torch/optim/adamw.h>

#include <cmath>

#include "tessera/base/errors.h"
#include "tessera/comm/world.h"
#include "tessera/dtensor/dtensor.h"
#include "tessera/fsdp/fully_shard.h"
#include "tessera/module/distribute_module.h"
#include "tessera/observe/expect.h"
#include "tessera/observe/recorder.h"
#include "tests/support/kept_entries.h"
#include "tests/support/ranks.h"
#include "tests/support/training.h"

/// Experts on several ranks give what one rank gives that loops over tokens and experts.
namespace tessera {
namespace expert_parallel_test {

constexpr int64_t kWidth = 8;
constexpr int64_t kHidden = 12;

struct Layer {
  int64_t tokens = 24;
  int64_t experts = 8;
  int64_t choices = 2;
  std::optional<double> capacity = std::nullopt;
  uint64_t seed = 1;

  at::Tensor x() const { return test::test_numbers({tokens, kWidth}, seed); }
  at::Tensor gate() const { return test::test_numbers({tokens, choices}, seed + 1); }
  at::Tensor choice() const {
    return test::test_numbers({tokens, choices}, seed + 2, experts).to(at::kLong);
  }
  at::Tensor up() const { return test::test_numbers({experts, kWidth, kHidden}, 11); }
  at::Tensor down() const { return test::test_numbers({experts, kHidden, kWidth}, 12); }
  at::Tensor grad() const { return test::test_numbers({tokens, kWidth}, 13); }
};

/// Output, gradients of tokens, gates and both weights.
std::vector<at::Tensor> plain(const Layer& layer, std::vector<int64_t>* kept = nullptr) {
  at::Tensor x = layer.x().set_requires_grad(true);
  at::Tensor gate = layer.gate().set_requires_grad(true);
  at::Tensor up = layer.up().set_requires_grad(true);
  at::Tensor down = layer.down().set_requires_grad(true);
  const at::Tensor choice = layer.choice();
  const auto limit = static_cast<int64_t>(
      std::ceil(layer.capacity.value_or(1e9) * static_cast<double>(layer.tokens * layer.choices) /
                static_cast<double>(layer.experts)));
  std::vector<int64_t> used(static_cast<size_t>(layer.experts), 0);
  at::Tensor out = at::zeros({layer.tokens, kWidth}, x.options());
  for (int64_t t = 0; t < layer.tokens; ++t) {
    for (int64_t k = 0; k < layer.choices; ++k) {
      const int64_t e = choice[t][k].item<int64_t>();
      if (++used[static_cast<size_t>(e)] > limit) continue;
      const at::Tensor y = at::silu(x[t].unsqueeze(0).mm(up[e])).mm(down[e]);
      out = out.index_add(0, at::zeros({1}, at::kLong).fill_(t), y * gate[t][k]);
    }
  }
  if (kept != nullptr) {
    for (const int64_t n : used) kept->push_back(std::min(n, limit));
  }
  out.backward(layer.grad());
  return {out.detach(), x.grad(), gate.grad(), up.grad(), down.grad()};
}

struct Placed {
  std::string mesh;
  std::string tokens;
  std::string up;
  std::string down;
};

std::vector<at::Tensor> sharded(const Layer& layer, const Placed& placed, ExpertLoad* load) {
  const DeviceMesh mesh = comm::init_device_mesh(placed.mesh);
  const auto put = [&](const at::Tensor& t, const std::string& placements) {
    return distribute_tensor(t, mesh, parse_placements(placements), {.source = std::nullopt});
  };
  at::Tensor x = put(layer.x(), placed.tokens).set_requires_grad(true);
  at::Tensor gate = put(layer.gate(), placed.tokens).set_requires_grad(true);
  at::Tensor up = put(layer.up(), placed.up).set_requires_grad(true);
  at::Tensor down = put(layer.down(), placed.down).set_requires_grad(true);
  const auto result =
      expert_parallel(x, put(layer.choice(), placed.tokens), gate,
                      [&](const at::Tensor& rows, const ExpertRows& experts) {
                        return experts.matmul(at::silu(experts.matmul(rows, up)), down);
                      },
                      {.experts = layer.experts, .axis = "ep", .capacity_factor = layer.capacity});
  result.out.backward(put(layer.grad(), placed.tokens));
  *load = result.load;
  std::vector<at::Tensor> all;
  for (const at::Tensor& t : {result.out.detach(), x.grad(), gate.grad(), up.grad(), down.grad()}) {
    all.push_back(full_tensor(t));
  }
  return all;
}

void expect_equal(const Layer& layer, const Placed& placed) {
  std::vector<int64_t> kept;
  const auto want = plain(layer, &kept);
  test::run_ranks(DeviceMesh::parse(placed.mesh).size(), [&](int) {
    ExpertLoad load;
    const auto got = sharded(layer, placed, &load);
    const char* names[] = {"output", "gradient of tokens", "gradient of gates", "gradient of up",
                           "gradient of down"};
    for (size_t i = 0; i < want.size(); ++i) {
      EXPECT_TRUE(at::allclose(got[i], want[i], 1e-9, 1e-9))
          << names[i] << " on " << placed.mesh << " differs by "
          << (got[i] - want[i]).abs().max().item<double>();
    }
    EXPECT_EQ(load.kept, kept);
  });
}

TEST(ExpertParallel, EqualsOneRank) {
  expect_equal({}, {"ep=4", "S0", "S0", "S0"});
  expect_equal({}, {"ep=1", "S0", "S0", "S0"});
}

TEST(ExpertParallel, TokensAndExpertsNeedNotDivideEvenly) {
  expect_equal({.tokens = 13, .experts = 5}, {"ep=4", "S0", "S0", "S0"});  // 2,2,1,0 experts
  expect_equal({.tokens = 3, .experts = 3, .choices = 1}, {"ep=4", "S0", "S0", "S0"});
  expect_equal({.tokens = 9, .experts = 1, .choices = 1}, {"ep=2", "S0", "S0", "S0"});
}

TEST(ExpertParallel, DropsWhatIsOverCapacityInTheOrderOfTokens) {
  expect_equal({.tokens = 30, .experts = 4, .capacity = 0.7}, {"ep=4", "S0", "S0", "S0"});
  expect_equal({.tokens = 30, .experts = 4, .capacity = 0.7},
               {"dp=2,ep=2", "S0,S0", "R,S0", "R,S0"});
  test::run_ranks(2, [&](int) {
    ExpertLoad load;
    sharded({.tokens = 30, .experts = 4, .capacity = 0.5}, {"ep=2", "S0", "S0", "S0"}, &load);
    EXPECT_EQ(load.capacity, 8);  // ceil(0.5 * 60 / 4)
    int64_t routed = 0;
    for (const int64_t n : load.routed) routed += n;
    EXPECT_EQ(routed, 60);
    int64_t kept = 0;
    for (const int64_t n : load.kept) {
      EXPECT_LE(n, 8);
      kept += n;
    }
    EXPECT_EQ(load.dropped(), 60 - kept);
    EXPECT_GT(load.dropped(), 0);
    EXPECT_NE(load.to_text().find("capacity 8, dropped"), std::string::npos) << load.to_text();
  });
}

TEST(ExpertParallel, WorksWithDataAndTensorParallelism) {
  expect_equal({}, {"dp=2,ep=2", "S0,S0", "R,S0", "R,S0"});
  expect_equal({}, {"ep=2,tp=2", "S0,R", "S0,S2", "S0,S1"});
  expect_equal({.tokens = 7, .experts = 3}, {"ep=2,tp=2", "S0,R", "S0,S2", "S0,S1"});
}

TEST(ExpertParallel, SendsCountsAndRowsOnce) {
  const Layer layer;
  test::run_ranks(4, [&](int) {
    const DeviceMesh mesh = comm::init_device_mesh("ep=4");
    const auto put = [&](const at::Tensor& t) {
      return distribute_tensor(t, mesh, {Shard(0)}, {.source = std::nullopt});
    };
    at::Tensor x = put(layer.x()).set_requires_grad(true);
    const at::Tensor choice = put(layer.choice()), gate = put(layer.gate());
    const at::Tensor up = put(layer.up()), down = put(layer.down()), grad = put(layer.grad());
    comm::Recorder recorder(*comm::current_world());
    const auto result = expert_parallel(x, choice, gate,
                                        [&](const at::Tensor& rows, const ExpertRows& experts) {
                                          return experts.matmul(experts.matmul(rows, up), down);
                                        },
                                        {.experts = 8});
    EXPECT_EQ(comm::expect_comm(recorder, "1 all_gather on ep, 2 all_to_all on ep"), "");
    recorder.clear();
    result.out.backward(grad);
    EXPECT_EQ(comm::expect_comm(recorder, "2 all_to_all on ep"), "");
  });
}

TEST(ExpertParallel, EverNewRoutesFillNoCache) {
  test::run_ranks(2, [&](int rank) {
    const DeviceMesh mesh = comm::init_device_mesh("ep=2");
    const auto put = [&](const at::Tensor& t) {
      return distribute_tensor(t, mesh, {Shard(0)}, {.source = std::nullopt});
    };
    const auto step = [&](uint64_t seed) {
      const Layer layer{.seed = seed};
      at::Tensor x = put(layer.x()).set_requires_grad(true);
      at::Tensor up = put(layer.up()).set_requires_grad(true);
      const at::Tensor down = put(layer.down());
      const auto result = expert_parallel(x, put(layer.choice()), put(layer.gate()),
                                          [&](const at::Tensor& rows, const ExpertRows& experts) {
                                            return experts.matmul(experts.matmul(rows, up), down);
                                          },
                                          {.experts = 8});
      result.out.backward(put(layer.grad()));
      return result.load.kept;
    };
    const auto barrier = [&] { full_tensor(put(at::zeros({2}))); };
    const auto first = step(1);
    step(2);
    barrier();
    const test::KeptEntries before;
    barrier();  // ranks that are threads share the counters
    bool differs = false;
    for (uint64_t seed = 3; seed < 20; ++seed) differs = step(seed) != first || differs;
    barrier();
    EXPECT_TRUE(differs);
    EXPECT_EQ(test::KeptEntries(), before) << "rank " << rank;
    barrier();
  });
}

TEST(ExpertParallel, RefusesWhatDoesNotFit) {
  test::run_ranks(2, [&](int) {
    const DeviceMesh mesh = comm::init_device_mesh("ep=2");
    const Layer layer;
    const auto put = [&](const at::Tensor& t, const char* placements = "S0") {
      return distribute_tensor(t, mesh, parse_placements(placements));
    };
    const auto message = [&](const at::Tensor& x, const at::Tensor& choice, ExpertOptions options) {
      try {
        expert_parallel(
            x, choice, put(layer.gate()),
            [](const at::Tensor& rows, const ExpertRows&) { return rows; }, options);
      } catch (const InvalidArgument& error) {
        return std::string(error.what());
      }
      return std::string("no error");
    };
    const auto expect = [](const std::string& text, const char* part) {
      EXPECT_NE(text.find(part), std::string::npos) << text;
    };
    const at::Tensor x = put(layer.x()), choice = put(layer.choice());
    expect(message(layer.x(), choice, {.experts = 8}), "expert_parallel_local");
    expect(message(put(layer.x(), "R"), choice, {.experts = 8}), "shard them over ep");
    expect(message(put(layer.x(), "S1"), choice, {.experts = 8}), "over dim 0 alone");
    expect(message(x, put(layer.choice(), "R"), {.experts = 8}), "redistribute it");
    expect(message(x, choice, {.experts = 8, .axis = "tp"}), "no axis 'tp'");
    expect(message(x, choice, {.experts = 4}), "of 4");
    expect(message(x, choice, {.experts = 8, .capacity_factor = -1.0}), "positive");
  });
}

/// A residual layer of experts behind a router, on plain tensors of this rank.
struct Mixture : torch::nn::Module {
  explicit Mixture(const Layer& of) : layer(of) {
    router = register_parameter("router", test::test_numbers({kWidth, of.experts}, 21));
    up = register_parameter("up", of.up());
    down = register_parameter("down", of.down());
  }
  at::Tensor forward(const at::Tensor& x, const DeviceMesh& mesh,
                     const std::vector<std::string>& token_axes) {
    const at::Tensor scores = x.mm(router).softmax(-1);
    const auto [gate, choice] = scores.topk(layer.choices, -1);
    const auto result = expert_parallel_local(
        x, choice, gate,
        [&](const at::Tensor& rows, const ExpertRows& experts) {
          return experts.matmul(at::silu(experts.matmul(rows, up)), down);
        },
        mesh, {.experts = layer.experts, .capacity_factor = layer.capacity}, token_axes);
    load = result.load;
    return x + result.out;
  }
  Layer layer;
  at::Tensor router, up, down;
  ExpertLoad load;
};

std::vector<double> train(Mixture& model, const DeviceMesh& mesh,
                          const std::vector<std::string>& axes, int part, int parts) {
  torch::optim::AdamW optimizer(model.parameters(), torch::optim::AdamWOptions(0.01));
  std::vector<double> losses;
  for (uint64_t step = 0; step < 10; ++step) {
    const at::Tensor batch = test::test_numbers({24, kWidth}, 100 + step);
    const at::Tensor x = batch.narrow(0, part * 24 / parts, 24 / parts);
    optimizer.zero_grad();
    const at::Tensor loss = (model.forward(x, mesh, axes) - x.sin()).pow(2).mean();
    loss.backward();
    optimizer.step();
    losses.push_back(loss.item<double>());
  }
  return losses;
}

/// Experts are sharded over ep, and by fully_shard over dp; the router over all ranks.
TEST(ExpertParallel, TrainsUnderFullyShardAsOnOneRank) {
  for (const auto capacity : {std::optional<double>(), std::optional<double>(0.8)}) {
    const Layer layer{.experts = 4, .capacity = capacity};
    Mixture alone(layer);
    test::run_ranks(1, [&](int) { train(alone, comm::init_device_mesh("ep=1"), {}, 0, 1); });
    test::run_ranks(4, [&](int rank) {
      const DeviceMesh mesh = comm::init_device_mesh("dp=2,ep=2");
      Mixture model(layer);
      distribute_(model.up, mesh["ep"], {Shard(0)});
      distribute_(model.down, mesh["ep"], {Shard(0)});
      fully_shard(model, mesh.flatten("all"),
                  {.shard_mesh = [&](const std::string& name, const at::Tensor&) {
                    return name == "router" ? std::nullopt : std::optional(mesh["dp"]);
                  }});
      train(model, mesh, {"dp", "ep"}, rank, 4);
      const auto want = alone.named_parameters();
      for (const auto& parameter : model.named_parameters()) {
        const at::Tensor got = full_tensor(parameter.value().detach());
        EXPECT_TRUE(at::allclose(got, want[parameter.key()].detach(), 1e-9, 1e-9))
            << parameter.key() << " differs by "
            << (got - want[parameter.key()].detach()).abs().max().item<double>();
      }
      EXPECT_EQ(model.load.kept, alone.load.kept);
      EXPECT_EQ(capacity.has_value(), model.load.dropped() > 0);
    });
  }
}

}  // namespace expert_parallel_test
}  // namespace tessera
