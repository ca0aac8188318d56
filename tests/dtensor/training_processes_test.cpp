// The main paths between real processes over Gloo: training steps of a small net, plain and
// sharded, end with the same parameters.
#include <ATen/Functions.h>
#include <gtest/gtest.h>

#include "tessera/base/errors.h"
#include "tessera/comm/processes.h"
#include "tessera/comm/world.h"
#include "tessera/dtensor/dtensor.h"
#include "tests/support/processes.h"
#include "tests/support/training.h"

namespace tessera {
namespace training_processes_test {

using test::test_numbers;
using testing::failures;
using testing::run_processes;
using testing::Scenario;

struct Net {
  at::Tensor table, w1, b1, w2;
  std::vector<at::Tensor*> parameters() { return {&table, &w1, &b1, &w2}; }
};

/// Three steps of stochastic gradient descent; the losses.
std::vector<double> train(Net& net, const at::Tensor& tokens, const at::Tensor& target) {
  std::vector<double> losses;
  for (int step = 0; step < 3; ++step) {
    const at::Tensor hidden = at::layer_norm(at::embedding(net.table, tokens), {6});
    const at::Tensor out = at::linear(at::tanh(at::linear(hidden, net.w1, net.b1)), net.w2);
    const at::Tensor loss = at::mse_loss(out, target);
    loss.backward();
    losses.push_back(loss.item<double>());
    const at::NoGradGuard no_grad;
    for (at::Tensor* p : net.parameters()) {
      p->sub_(p->grad(), 0.1);
      p->mutable_grad().reset();
    }
  }
  return losses;
}

void trains_as_one_rank(const char* text, const std::vector<const char*>& layout) {
  const std::vector<std::vector<int64_t>> shapes = {{7, 6}, {8, 6}, {8}, {3, 8}};
  const at::Tensor tokens = test_numbers({4, 5}, 21, 7);
  const at::Tensor target = test_numbers({4, 5, 3}, 22);
  const DeviceMesh mesh = comm::init_device_mesh(text);
  Net plain, sharded;
  for (size_t i = 0; i < shapes.size(); ++i) {
    const at::Tensor full = test_numbers(shapes[i], 30 + i);
    *plain.parameters()[i] = full.clone().requires_grad_();
    *sharded.parameters()[i] =
        distribute_tensor(full, mesh, parse_placements(layout[i])).requires_grad_();
  }
  const auto expected = train(plain, tokens, target);
  const auto inputs = parse_placements(layout.back());
  const auto losses = train(sharded, distribute_tensor(tokens, mesh, inputs),
                            distribute_tensor(target, mesh, inputs));
  for (size_t i = 0; i < losses.size(); ++i) EXPECT_NEAR(losses[i], expected[i], 1e-10);
  for (size_t i = 0; i < shapes.size(); ++i) {
    EXPECT_TRUE(at::allclose(full_tensor(sharded.parameters()[i]->detach()),
                             plain.parameters()[i]->detach(), 1e-10, 1e-10))
        << text << ", parameter " << i;
  }
}

const Scenario kOnTwo("on two", [] {
  trains_as_one_rank("tp=2", {"S0", "S0", "S0", "S1", "R"});
  trains_as_one_rank("dp=2", {"R", "R", "R", "R", "S0"});
  trains_as_one_rank("dp=2", {"S0", "S1", "S0", "S0", "S0"});
});

const Scenario kOnFour("on four", [] {
  trains_as_one_rank("dp=2,tp=2", {"R,S1", "R,S0", "R,S0", "R,S1", "S0,R"});
  trains_as_one_rank("dp=4", {"S0", "S0", "S0", "S1", "S0"});
  trains_as_one_rank("dp=2,tp=2", {"S0,S0", "S1,S0", "S0,R", "S1,S1", "S1,S0"});
});

TEST(TrainingProcesses, TwoMatchOneRank) {
  EXPECT_EQ(failures(run_processes(kOnTwo, {.size = 2})), "");
}

TEST(TrainingProcesses, FourMatchOneRank) {
  EXPECT_EQ(failures(run_processes(kOnFour, {.size = 4})), "");
}

const Scenario kRefusals("refusals", [] {
  const DeviceMesh mesh = comm::init_device_mesh("tp=2");
  const at::Tensor x = distribute_tensor(test_numbers({4, 6}, 1), mesh, {Shard(0)});
  EXPECT_THROW(at::mm(x, x), c10::Error);
  EXPECT_THROW(redistribute(x, {Partial()}), InvalidArgument);
  EXPECT_THROW(from_local(at::ones({2, mesh.local_rank(0) + 1}), mesh, {Shard(0)}),
               InvalidArgument);
  EXPECT_TRUE(at::equal(full_tensor(x), test_numbers({4, 6}, 1)));  // and go on
});

TEST(TrainingProcesses, RefuseBadInputOnEveryRankAndGoOn) {
  EXPECT_EQ(failures(run_processes(kRefusals, {.size = 2})), "");
}

}  // namespace training_processes_test
}  // namespace tessera
