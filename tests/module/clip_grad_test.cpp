#include "tessera/module/clip_grad.h"

#include <gtest/gtest.h>
#include <torch/nn/utils/clip_grad.h>

#include <cmath>
#include <limits>

#include "tessera/base/errors.h"
#include "tessera/comm/threads.h"
#include "tessera/fsdp/fully_shard.h"
#include "tessera/module/distribute_module.h"
#include "tessera/observe/recorder.h"
#include "tests/fsdp/models.h"

namespace tessera {
namespace clip_grad_test {

using comm::CommOp;
using comm::init_device_mesh;
using comm::Recorder;
using comm::run_ranks;
using test::layers_of;
using test::make_mlp;
using test::test_numbers;

constexpr double kLargest = std::numeric_limits<double>::infinity();

/// Gives every parameter of both the same gradient, placed as the parameter in `net`.
void set_gradients(torch::nn::Sequential& net, torch::nn::Sequential& plain) {
  uint64_t seed = 20;
  for (const auto& item : net->named_parameters()) {
    const at::Tensor parameter = item.value();
    const at::Tensor grad = test_numbers(parameter.sizes().vec(), ++seed);
    plain->named_parameters()[item.key()].mutable_grad() = grad.clone();
    parameter.mutable_grad() =
        is_dtensor(parameter)
            ? redistribute(distribute_tensor(grad, device_mesh(parameter),
                                             std::vector<Placement>(device_mesh(parameter).ndim())),
                           sharding(parameter))
            : grad.clone();
  }
}

using Lay = std::function<void(torch::nn::Sequential&, const DeviceMesh&)>;

/// Clips as one rank does, for several norms, with `reductions` messages.
void clips_as_one_rank(const char* text, int ranks, int reductions, const Lay& lay) {
  run_ranks(ranks, [&](int) {
    const DeviceMesh mesh = init_device_mesh(text);
    auto plain = make_mlp({6, 9, 7, 5});
    auto net = make_mlp({6, 9, 7, 5});
    lay(net, mesh);
    for (const double p : {2.0, 1.0, 3.0, kLargest}) {
      for (const double limit : {0.05, 1e6}) {
        set_gradients(net, plain);
        const double want = torch::nn::utils::clip_grad_norm_(plain->parameters(), limit, p);
        Recorder recorder(*comm::current_world());
        const at::Tensor got = clip_grad_norm_(net->parameters(), limit, {.norm_type = p});
        EXPECT_EQ(recorder.count(CommOp::all_reduce), reductions) << recorder.to_text();
        EXPECT_EQ(recorder.count(), reductions) << recorder.to_text();
        EXPECT_EQ(recorder.count_implicit(), 0);
        EXPECT_NEAR(got.item<double>(), want, 1e-12 * want) << text << " p=" << p;
        for (const auto& item : net->named_parameters()) {
          const at::Tensor grad = item.value().grad();
          EXPECT_TRUE(at::allclose(is_dtensor(grad) ? full_tensor(grad) : grad,
                                   plain->named_parameters()[item.key()].grad(), 1e-11, 1e-13))
              << item.key() << " p=" << p;
        }
      }
    }
  });
}

TEST(ClipGradNorm, OfShardsIsOneReduction) {
  const Lay shard = [](auto& net, const auto& mesh) {
    for (auto* layer : layers_of(net)) fully_shard(*layer, mesh);
  };
  clips_as_one_rank("dp=1", 1, 0, shard);
  clips_as_one_rank("dp=3", 3, 1, shard);
  clips_as_one_rank("dp=2,fs=2", 4, 1, shard);
}

TEST(ClipGradNorm, OfReplicasAndPlainOnesSendsNothing) {
  clips_as_one_rank("dp=2", 2, 0,
                    [](auto& net, const auto& mesh) { replicate(*layers_of(net)[0], mesh); });
}

/// Some sharded over both axes, some over one: still one number. An ignored one counts once.
TEST(ClipGradNorm, OverTensorParallelismIsOneReduction) {
  clips_as_one_rank("dp=2,tp=3", 6, 1, [](auto& net, const auto& mesh) {
    auto layers = layers_of(net);
    distribute_(layers[0]->weight, mesh["tp"], {Shard(0)});
    distribute_(layers[0]->bias, mesh["tp"], {Replicate()});
    fully_shard(*layers[0], mesh["dp"]);
    distribute_(layers[1]->weight, mesh, {Replicate(), Shard(1)});
    distribute_(layers[1]->bias, mesh, {Replicate(), Replicate()});
  });
}

TEST(ClipGradNorm, OfSeveralMeshesIsOneReductionEach) {
  clips_as_one_rank("dp=2,fs=2", 4, 2, [](auto& net, const auto& mesh) {
    auto layers = layers_of(net);
    fully_shard(*layers[0], mesh);
    fully_shard(*layers[1], mesh.flatten({"dp", "fs"}, "all"));
  });
}

/// What is still a sum over the ranks is summed before, and stays so.
TEST(ClipGradNorm, SettlesPartialGradients) {
  run_ranks(2, [](int rank) {
    const DeviceMesh mesh = init_device_mesh("dp=2");
    const at::Tensor parameter =
        distribute_tensor(at::zeros({4}, at::kDouble), mesh, {Shard(0)}).requires_grad_();
    parameter.mutable_grad() =
        from_local(at::full({4}, rank == 0 ? 5.0 : -2.0, at::kDouble), mesh, {Partial()});
    EXPECT_NEAR(clip_grad_norm_(std::vector{parameter}, 3.0).item<double>(), 6, 1e-12);
    EXPECT_EQ(sharding(parameter.grad()).placements_text(), "S0");
    EXPECT_TRUE(at::allclose(full_tensor(parameter.grad()), at::full({4}, 1.5, at::kDouble)));
  });
}

TEST(ClipGradNorm, OfHalvesDoesNotOverflow) {
  run_ranks(2, [](int) {
    const DeviceMesh mesh = init_device_mesh("dp=2");
    const at::Tensor parameter =
        distribute_tensor(at::zeros({4}, at::kHalf), mesh, {Shard(0)}).requires_grad_();
    parameter.mutable_grad() =
        distribute_tensor(at::full({4}, 1000.0, at::kHalf), mesh, {Shard(0)});
    const std::vector list = {parameter};
    EXPECT_NEAR(clip_grad_norm_(list, 1.0).item<double>(), 2000, 1e-3);
    constexpr double kNoLimit = std::numeric_limits<double>::infinity();
    EXPECT_NEAR(clip_grad_norm_(list, kNoLimit).item<double>(), 1, 1e-3);
    EXPECT_NEAR(clip_grad_norm_(list, kNoLimit).item<double>(), 1, 1e-3);
  });
}

TEST(ClipGradNorm, RefusesWhatIsNoNormOnEveryRank) {
  run_ranks(2, [](int rank) {
    const DeviceMesh mesh = init_device_mesh("dp=2");
    const at::Tensor parameter =
        distribute_tensor(at::zeros({4}, at::kDouble), mesh, {Shard(0)}).requires_grad_();
    const std::vector list = {parameter};
    EXPECT_EQ(clip_grad_norm_(list, 1.0).item<double>(), 0);  // nothing has a gradient
    parameter.mutable_grad() = distribute_tensor(at::ones({4}, at::kDouble), mesh, {Shard(0)});
    EXPECT_THROW(clip_grad_norm_(list, 1.0, {.norm_type = 0}), InvalidArgument);
    if (rank == 1) to_local(parameter.grad()).fill_(NAN);
    EXPECT_THROW(clip_grad_norm_(list, 1.0, {.error_if_nonfinite = true}), InvalidArgument);
    EXPECT_TRUE(std::isnan(clip_grad_norm_(list, 1.0).item<double>()));
  });
}

}  // namespace clip_grad_test
}  // namespace tessera
