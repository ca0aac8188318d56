// Plain tensors that the program brings into a backward pass (in hooks, in derivatives of its own)
// are refused as elsewhere; those that libtorch's formulas make take part as replicated.
#include <ATen/Functions.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/custom_function.h>

#include "tessera/comm/threads.h"
#include "tessera/comm/world.h"
#include "tessera/dtensor/dtensor.h"
#include "tessera/dtensor/policy.h"
#include "tests/support/processes.h"
#include "tests/support/ranks.h"
#include "tests/support/training.h"

namespace tessera {
namespace plain_in_backward_test {

using test::run_ranks;
using test::test_numbers;
using testing::error_of;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

void expect_refused(const std::function<void()>& body, const char* what) {
  const std::string error = error_of(body);
  EXPECT_NE(error.find("a plain tensor of shape"), std::string::npos) << what << ": " << error;
}

/// A sum whose derivative is what the program says.
struct Weighted : torch::autograd::Function<Weighted> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& x, const at::Tensor& weight) {
    ctx->save_for_backward({weight});
    return x.clone();
  }
  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    return {grads[0] * ctx->get_saved_variables()[0], at::Tensor()};
  }
};

at::Tensor input(const DeviceMesh& mesh, const Placement& placement) {
  return distribute_tensor(test_numbers({4, 6}, 1), mesh, {placement}).requires_grad_();
}

TEST(PlainInBackward, OfAHookStaysPlainAndIsRefused) {
  run_ranks(2, [](int) {
    const DeviceMesh mesh = comm::init_device_mesh("tp=2");
    for (const Placement& placement : {Shard(0), Replicate()}) {
      const at::Tensor stats = at::zeros({4, 6}, at::kDouble);
      at::Tensor x = input(mesh, placement);
      x.register_hook([&](const at::Tensor& grad) { stats.add_(grad); });
      expect_refused([&] { (x * 2).sum().backward(); }, "a write in a hook of a leaf");
      EXPECT_FALSE(is_dtensor(stats));

      at::Tensor y = input(mesh, placement) * 2;
      y.register_hook([&](const at::Tensor& grad) { return grad * stats; });
      expect_refused([&] { y.sum().backward(); }, "a product in a hook");
      y = input(mesh, placement) * 2;
      y.register_hook([&](const at::Tensor& grad) {
        const ImplicitReplication allowed;
        return grad * at::full({4, 6}, 3.0, at::kDouble);
      });
      EXPECT_NO_THROW(y.sum().backward());
    }
  });
}

TEST(PlainInBackward, OfADerivativeOfTheProgramIsRefused) {
  run_ranks(2, [](int) {
    const DeviceMesh mesh = comm::init_device_mesh("tp=2");
    const at::Tensor plain = at::ones({4, 6}, at::kDouble);
    at::Tensor x = input(mesh, Shard(0));
    expect_refused([&] { Weighted::apply(x, plain).sum().backward(); }, "a derivative");
    const at::Tensor sharded = distribute_tensor(plain * 3, mesh, {Shard(0)});
    Weighted::apply(x, sharded).sum().backward();
    EXPECT_TRUE(at::equal(full_tensor(x.grad()), plain * 3));
  });
}

/// Two outputs; each may stay without a gradient, for which autograd then makes plain zeros.
struct Twice : torch::autograd::Function<Twice> {
  static variable_list forward(AutogradContext*, const at::Tensor& x) { return {x * 2, x * 3}; }
  static variable_list backward(AutogradContext*, variable_list grads) {
    return {grads[0] * 2 + grads[1] * 3};
  }
};

TEST(PlainInBackward, ZerosOfUnusedOutputsAreReplicated) {
  run_ranks(2, [](int) {
    const DeviceMesh mesh = comm::init_device_mesh("tp=2");
    for (const Placement& placement : {Shard(0), Shard(1), Replicate()}) {
      for (const size_t used : {0, 1}) {
        at::Tensor x = input(mesh, placement);
        Twice::apply(x)[used].sum().backward();
        EXPECT_TRUE(is_dtensor(x.grad()));
        EXPECT_TRUE(
            at::equal(full_tensor(x.grad()), at::full({4, 6}, used == 0 ? 2.0 : 3.0, at::kDouble)));
      }
    }
  });
}

TEST(PlainInBackward, OfLibtorchsFormulasIsReplicated) {
  // Each makes zeros, an index or a mask by size alone.
  const std::vector<std::pair<const char*, std::function<at::Tensor(const at::Tensor&)>>> calls = {
      {"max", [](const at::Tensor& x) { return std::get<0>(x.max(1)); }},
      {"cumprod", [](const at::Tensor& x) { return x.cumprod(1); }},
      {"prod", [](const at::Tensor& x) { return x.prod(); }},
      {"unfold", [](const at::Tensor& x) { return x.unfold(1, 3, 2) * 2; }},
      {"gather", [](const at::Tensor& x) { return x.gather(1, std::get<1>(x.sort(1))); }},
      {"sort", [](const at::Tensor& x) { return std::get<0>(x.sort(1)); }},
      {"diagonal", [](const at::Tensor& x) { return x.diagonal(); }},
      {"tril", [](const at::Tensor& x) { return x.tril(); }},
      {"norm", [](const at::Tensor& x) { return x.norm(); }},
  };
  run_ranks(2, [&](int) {
    const DeviceMesh mesh = comm::init_device_mesh("tp=2");
    for (const auto& [what, call] : calls) {
      at::Tensor plain = test_numbers({4, 6}, 1).requires_grad_();
      call(plain).pow(2).sum().backward();
      for (const Placement& placement : {Shard(0), Shard(1), Replicate()}) {
        at::Tensor x = input(mesh, placement);
        call(x).pow(2).sum().backward();
        EXPECT_TRUE(at::allclose(full_tensor(x.grad()), plain.grad()))
            << what << " of " << placement.to_text();
        // The same with a graph of its own.
        const at::Tensor y = input(mesh, placement);
        const auto first =
            torch::autograd::grad({call(y).pow(2).sum()}, {y}, {}, std::nullopt, true);
        EXPECT_TRUE(at::allclose(full_tensor(first[0].detach()), plain.grad())) << what;
      }
    }
  });
}

}  // namespace plain_in_backward_test
}  // namespace tessera
