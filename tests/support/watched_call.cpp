#include "tests/support/watched_call.h"

#include <ATen/ops/allclose.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/randn_like.h>
#include <gtest/gtest.h>

#include "tessera/comm/world.h"
#include "tessera/dtensor/dtensor.h"
#include "tessera/observe/expect.h"
#include "tessera/observe/recorder.h"
#include "tests/support/ranks.h"

namespace tessera::test {
namespace {

constexpr uint64_t kSeed = 20'261;

at::Tensor full_input(const Input& input) {
  if (input.below > 0) return at::randint(0, input.below, input.shape, at::kLong);
  return at::randn(input.shape, at::TensorOptions().dtype(at::kDouble)).requires_grad_();
}

/// Callers never see Partial gradients: replicated there.
std::vector<Placement> grad_placements(const at::Tensor& result) {
  std::vector<Placement> out = placements(result);
  for (auto& p : out) p = p.is_partial() ? Replicate() : p;
  return out;
}

void check_on_rank(const DeviceMesh& mesh, const WatchedCall& call, const Tensors& full,
                   const at::Tensor& expected, const at::Tensor& grad) {
  const std::string name = std::string(call.what) + " on " + mesh.to_text();
  Tensors inputs;
  for (size_t i = 0; i < full.size(); ++i) {
    at::Tensor x =
        distribute_tensor(full[i].detach(), mesh, parse_placements(call.inputs[i].placements),
                          {.source = std::nullopt});
    inputs.push_back(x.requires_grad_(full[i].requires_grad()));
  }
  comm::Recorder recorder(*comm::current_world());
  const at::Tensor result = call.function(inputs);
  EXPECT_EQ(comm::expect_comm(recorder, call.forward), "") << name << ", forward";
  ASSERT_TRUE(is_dtensor(result)) << name;
  if (call.result != nullptr) {
    EXPECT_EQ(placements_text(placements(result)), call.result) << name;
  }
  EXPECT_TRUE(at::allclose(full_tensor(result.detach()), expected)) << name;
  if (call.backward == nullptr) return;

  const at::Tensor given = redistribute(
      distribute_tensor(grad, mesh, std::vector<Placement>(static_cast<size_t>(mesh.ndim())),
                        {.source = std::nullopt}),
      Sharding(mesh, grad_placements(result), result.sizes().vec(),
               {.dtype = DType::f64, .stride = {}, .order = sharding(result).order()}));
  recorder.clear();
  result.backward(given);
  EXPECT_EQ(comm::expect_comm(recorder, call.backward), "") << name << ", backward";
  for (size_t i = 0; i < full.size(); ++i) {
    if (!full[i].requires_grad()) continue;
    ASSERT_TRUE(inputs[i].grad().defined()) << name << ", gradient " << i;
    EXPECT_TRUE(at::allclose(full_tensor(inputs[i].grad()), full[i].grad()))
        << name << ", gradient " << i;
  }
}

}  // namespace

void check_call(std::string_view mesh, const WatchedCall& call) {
  at::manual_seed(kSeed);
  Tensors full;
  for (const auto& input : call.inputs) full.push_back(full_input(input));
  const at::Tensor expected = call.function(full);
  const at::Tensor grad = at::randn_like(expected.detach());
  if (call.backward != nullptr) expected.backward(grad);
  const int ranks = DeviceMesh::parse(mesh).size();
  try {
    test::run_ranks(ranks, [&](int) {
      check_on_rank(comm::init_device_mesh(mesh), call, full, expected.detach(), grad);
    });
  } catch (const std::exception& error) {
    ADD_FAILURE() << call.what << " on " << mesh << ": " << error.what();
  }
}

void check_calls(std::string_view mesh, const std::vector<WatchedCall>& calls) {
  for (const auto& call : calls) check_call(mesh, call);
}

}  // namespace tessera::test
