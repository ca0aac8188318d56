// torch::nn modules in plain libtorch code, their parameters and inputs sharded: forward, loss and
// all gradients are those of one rank.
#include <gtest/gtest.h>

#include "tessera/comm/rank_generator.h"
#include "tessera/comm/threads.h"
#include "tessera/dtensor/dtensor.h"
#include "tessera/dtensor/policy.h"
#include "tests/module/module_cases.h"
#include "tests/support/training.h"

namespace tessera {
namespace modules_test {

using test::Instance;
using test::ModuleCase;
using test::Results;
using test::Rng;

constexpr uint64_t kParameters = 1000;
constexpr uint64_t kInputs = 2000;
constexpr uint64_t kTarget = 3000;
constexpr uint64_t kDraws = 4000;

/// Layouts drawn for each module; TESSERA_SEED runs any other one.
constexpr int kSeeds = 10;

std::vector<at::Tensor> plain_inputs(const ModuleCase& subject) {
  std::vector<at::Tensor> out;
  for (const auto& input : subject.inputs) {
    out.push_back(test::test_numbers(input.shape, kInputs + out.size(), input.below));
    if (input.below == 0) out.back().requires_grad_();
  }
  return out;
}

at::Tensor plain_target(const at::Tensor& output) {
  return test::test_numbers(output.sizes().vec(), kTarget);
}

using PlaceInput = std::function<std::vector<Placement>(size_t input, int64_t ndim)>;

Results run_sharded(const ModuleCase& subject, const DeviceMesh& mesh,
                    const test::PlaceParameter& place, const PlaceInput& place_input) {
  // libtorch's attention pads masks with zeros of its own making.
  const ImplicitReplication plain_zeros(subject.makes_tensors);
  const Instance instance = subject.make();
  test::set_parameters(*instance.module, kParameters);
  test::shard_parameters(*instance.module, mesh, place);
  std::vector<at::Tensor> inputs;
  for (const auto& input : plain_inputs(subject)) {
    inputs.push_back(distribute_tensor(input, mesh, place_input(inputs.size(), input.dim())));
  }
  const auto target = [&](const at::Tensor& output) {
    const at::Tensor full = plain_target(output);
    return distribute_tensor(full, mesh, place_input(inputs.size(), full.dim()));
  };
  comm::manual_seed(kDraws);
  return test::run_step(instance, inputs, target);
}

Results on_one_rank(const ModuleCase& subject) {
  Results out;
  if (subject.draws) {
    comm::run_ranks(1, [&](int) {
      const auto replicated = [](const auto&, int64_t) { return std::vector{Replicate()}; };
      out = run_sharded(subject, comm::init_device_mesh("all=1"), replicated, replicated);
      for (auto& [name, tensor] : out) tensor = full_tensor(tensor);
    });
    return out;
  }
  const Instance instance = subject.make();
  test::set_parameters(*instance.module, kParameters);
  return test::run_step(instance, plain_inputs(subject), plain_target);
}

class Modules : public ::testing::TestWithParam<size_t> {
 protected:
  const ModuleCase& subject() const { return test::module_cases()[GetParam()]; }
};

TEST_P(Modules, InTheUsualLayoutsMatchOneRank) {
  const Results expected = on_one_rank(subject());
  for (const auto& layout : subject().layouts) {
    const std::string what = test::layout_text(layout);
    SCOPED_TRACE(what);
    comm::run_ranks(DeviceMesh::parse(layout.mesh).size(), [&](int rank) {
      const DeviceMesh mesh = comm::init_device_mesh(layout.mesh);
      const std::vector<Placement> replicated(static_cast<size_t>(mesh.ndim()));
      const auto placements = [&](const char* text) {
        return text == nullptr || *text == '\0' ? replicated : parse_placements(text);
      };
      const auto place = [&](const std::string& name, int64_t) {
        const auto it = layout.parameters.find(name);
        return it == layout.parameters.end() ? replicated : placements(it->second);
      };
      const auto place_input = [&](size_t i, int64_t) {
        return i < layout.inputs.size() ? placements(layout.inputs[i]) : replicated;
      };
      EXPECT_EQ(test::difference(run_sharded(subject(), mesh, place, place_input), expected), "")
          << "rank " << rank << ", " << what;
    });
  }
}

TEST_P(Modules, InRandomLayoutsMatchOneRank) {
  const Results expected = on_one_rank(subject());
  test::for_each_seed(kSeeds, [&](Rng& rng) {
    const std::string text =
        rng.one_of<std::string>({"a=2", "a=3", "a=2,b=2", "a=2,b=3", "a=2,b=2,c=2"});
    const uint64_t seed = rng.next();
    comm::run_ranks(DeviceMesh::parse(text).size(), [&](int rank) {
      const DeviceMesh mesh = comm::init_device_mesh(text);
      Rng mine(seed);  // all ranks draw alike
      std::string drawn = text;
      const auto draw = [&](const std::string& name, int64_t ndim) {
        const auto placements = test::random_placements(mine, mesh, ndim);
        drawn += "; " + name + " " + placements_text(placements);
        return placements;
      };
      const auto draw_input = [&](size_t i, int64_t ndim) {
        return draw("input " + std::to_string(i), ndim);
      };
      try {
        EXPECT_EQ(test::difference(run_sharded(subject(), mesh, draw, draw_input), expected), "")
            << "rank " << rank << ": " << drawn;
      } catch (const std::exception& error) {
        throw std::runtime_error(drawn + ": " + error.what());
      }
    });
  });
}

/// Each backward leaves the gradient placed its own way; they add up in the first one's place.
TEST(Gradients, AddUpOverSeveralBackwards) {
  const std::vector<const char*> placements = {"S0,R", "R,R", "S1,S2", "S0,S0"};
  const auto input = [](size_t i) { return test::test_numbers({4, 5, 6}, kInputs + i); };
  const at::Tensor weight = test::test_numbers({8, 6}, kParameters);
  const at::Tensor bias = test::test_numbers({8}, kParameters + 1);
  const at::Tensor plain_weight = weight.clone().requires_grad_();
  const at::Tensor plain_bias = bias.clone().requires_grad_();
  for (size_t i = 0; i < placements.size(); ++i) {
    at::linear(input(i), plain_weight, plain_bias).pow(2).sum().backward();
  }
  for (const char* layout : {"R,R", "S0,R", "S1,S0", "R,S1"}) {
    comm::run_ranks(4, [&](int) {
      const DeviceMesh mesh = comm::init_device_mesh("a=2,b=2");
      const at::Tensor w =
          distribute_tensor(weight, mesh, parse_placements(layout)).requires_grad_();
      const at::Tensor b = distribute_tensor(bias, mesh, {Replicate(), Shard(0)}).requires_grad_();
      for (size_t i = 0; i < placements.size(); ++i) {
        const at::Tensor x = distribute_tensor(input(i), mesh, parse_placements(placements[i]));
        at::linear(x, w, b).pow(2).sum().backward();
      }
      EXPECT_EQ(test::difference({{"weight", w.grad()}, {"bias", b.grad()}},
                                 {{"weight", plain_weight.grad()}, {"bias", plain_bias.grad()}}),
                "")
          << layout;
    });
  }
}

std::vector<size_t> all_cases() {
  std::vector<size_t> out(test::module_cases().size());
  for (size_t i = 0; i < out.size(); ++i) out[i] = i;
  return out;
}

INSTANTIATE_TEST_SUITE_P(All, Modules, ::testing::ValuesIn(all_cases()),
                         [](const auto& info) { return test::module_cases()[info.param].name; });

}  // namespace modules_test
}  // namespace tessera
