#include "tessera/fsdp/training_state.h"

#include "tessera/base/errors.h"
#include "tests/fsdp/training.h"

namespace tessera {
namespace training_state_test {

using namespace test;
using enum TrainingState;

std::string states(torch::nn::Module& module) {
  std::string out;
  for (const auto& group : sharded_groups(module)) {
    out += (out.empty() ? "" : " ") + std::string(to_text(group.state));
  }
  return out;
}

/// The whole table of ways.
TEST(TrainingState, OnlyTheWaysOfAStepExist) {
  const std::vector<TrainingState> all = {idle, forward, pre_backward, post_backward};
  const std::vector<std::vector<bool>> ways = {{true, true, true, false},   // from idle
                                               {true, true, true, false},   // from forward
                                               {true, false, true, true},   // from pre_backward
                                               {true, false, true, true}};  // from post_backward
  for (size_t from = 0; from < all.size(); ++from) {
    for (size_t to = 0; to < all.size(); ++to) {
      EXPECT_EQ(fsdp::may_follow(all[from], all[to]), ways[from][to])
          << to_text(all[from]) << " to " << to_text(all[to]);
    }
  }
  fsdp::GroupState state;
  EXPECT_THROW(state.enter(post_backward), InternalError);
  EXPECT_EQ(state.now(), idle);
}

void goes_through_a_step(bool sharded) {
  run_ranks(2, [&](int) {
    const DeviceMesh mesh = init_device_mesh("dp=2");
    auto net = make_mlp({4, 5, 3});
    for (auto* layer : layers_of(net)) {
      sharded ? fully_shard(*layer, mesh, {.merge_bytes = 0})
              : replicate(*layer, mesh, {.merge_bytes = 0});
    }
    const at::Tensor x = at::ones({2, 4}, at::kDouble);
    for (int step = 0; step < 3; ++step) {
      EXPECT_EQ(states(*net), "idle idle");
      at::Tensor hidden = layers_of(net)[0]->forward(x);
      EXPECT_EQ(states(*net), "forward idle");
      hidden.register_hook([&](const at::Tensor& grad) {
        EXPECT_EQ(states(*net), "forward post_backward");
        return grad;
      });
      const at::Tensor out = layers_of(net)[1]->forward(hidden);
      EXPECT_EQ(states(*net), "forward forward");
      layers_of(net)[0]->bias.register_hook([&](const at::Tensor& grad) {
        EXPECT_NE(states(*net).find(" post_backward"), std::string::npos) << states(*net);
        return grad;
      });
      out.sum().backward();
      EXPECT_EQ(states(*net), "idle idle");
      const torch::NoGradGuard no_grad;
      net->forward(x);
      EXPECT_EQ(sharded_groups(*net)[0].state, idle);
      reshard(*net);  // nothing shows that an evaluation has ended
    }
  });
}

TEST(TrainingState, OfShardsGoesThroughAStep) { goes_through_a_step(true); }
TEST(TrainingState, OfReplicasGoesThroughAStep) { goes_through_a_step(false); }

TEST(TrainingState, IsIdleAgainAfterABackwardThatFails) {
  run_ranks(2, [](int) {
    const DeviceMesh mesh = init_device_mesh("dp=2");
    auto net = make_mlp({4, 5, 3});
    shard_layers(net, mesh);
    const at::Tensor x = at::ones({2, 4}, at::kDouble);
    at::Tensor hidden = layers_of(net)[0]->forward(x);
    hidden.register_hook([](const at::Tensor&) -> at::Tensor { throw InvalidArgument("of test"); });
    EXPECT_ANY_THROW(layers_of(net)[1]->forward(hidden).sum().backward());
    layers_of(net)[0]->forward(x);
    EXPECT_EQ(states(*net), "forward idle");
    net->forward(x).sum().backward();
    EXPECT_EQ(states(*net), "idle idle");
  });
}

}  // namespace training_state_test
}  // namespace tessera
