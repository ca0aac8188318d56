#include <ATen/Context.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/allclose.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/scaled_dot_product_attention.h>
#include <ATen/ops/silu.h>
#include <gtest/gtest.h>

#include "tessera/comm/threads.h"
#include "tessera/comm/world.h"
#include "tessera/dtensor/dtensor.h"
#include "tessera/parallel/context/context_parallel.h"
#include "tessera/parallel/experts/expert_parallel.h"

/// Context and expert parallelism on a GPU that thread ranks share: every kernel, every method.
namespace tessera {
namespace parallel_cuda_test {

class ParallelCuda : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!at::hasCUDA()) GTEST_SKIP() << "no GPU here";
  }
};

struct KernelCase {
  AttentionKernel kernel;
  at::ScalarType dtype;
  double tolerance;
};

const KernelCase kKernelCases[] = {
    {AttentionKernel::flash, at::kBFloat16, 6e-2},  {AttentionKernel::flash, at::kHalf, 2e-2},
    {AttentionKernel::efficient, at::kFloat, 1e-3}, {AttentionKernel::cudnn, at::kBFloat16, 6e-2},
    {AttentionKernel::math, at::kDouble, 1e-9},     {AttentionKernel::automatic, at::kFloat, 1e-3},
    {AttentionKernel::automatic, at::kHalf, 2e-2},
};

/// Output and gradients of queries, keys and values in float64.
std::vector<at::Tensor> whole(const std::vector<at::Tensor>& in, bool causal,
                              const std::optional<at::Tensor>& mask) {
  std::vector<at::Tensor> leaves;
  for (size_t i = 0; i < 3; ++i) {
    leaves.push_back(in[i].to(at::kDouble).detach().set_requires_grad(true));
  }
  const at::Tensor out = at::scaled_dot_product_attention(leaves[0], leaves[1], leaves[2], mask,
                                                          0.0, causal, std::nullopt, true);
  out.backward(in[3].to(at::kDouble));
  return {out.detach(), leaves[0].grad(), leaves[1].grad(), leaves[2].grad()};
}

void expect_same(const KernelCase& of, ContextMethod method, bool causal, int64_t key_heads,
                 int64_t width, const std::optional<at::Tensor>& mask = std::nullopt) {
  const auto options = at::TensorOptions(c10::kCUDA).dtype(of.dtype);
  constexpr int64_t kRows = 200;  // not a multiple of what kernels like
  const std::vector<at::Tensor> in = {
      at::randn({2, 4, kRows, width}, options), at::randn({2, key_heads, kRows, width}, options),
      at::randn({2, key_heads, kRows, width}, options), at::randn({2, 4, kRows, width}, options)};
  const auto want = whole(in, causal, mask);
  comm::run_ranks(4, [&](int) {
    const DeviceMesh mesh = comm::init_device_mesh("cuda:cp=4");
    const auto order = SequenceOrder::head_tail(kRows, 4);
    const auto put = [&](const at::Tensor& t) {
      return distribute_tensor(reorder_sequence(t, 2, order), mesh, {Shard(2)},
                               {.source = std::nullopt});
    };
    at::Tensor q = put(in[0]).set_requires_grad(true);
    at::Tensor k = put(in[1]).set_requires_grad(true);
    at::Tensor v = put(in[2]).set_requires_grad(true);
    AttentionOptions attention{.is_causal = causal};
    if (mask) attention.mask = reorder_sequence(*mask, -1, order);
    const at::Tensor out = context_parallel_attention(
        q, k, v, attention, {.method = method, .order = order, .kernel = of.kernel});
    out.backward(put(in[3]));
    size_t i = 0;
    for (const at::Tensor& t : {out.detach(), q.grad(), k.grad(), v.grad()}) {
      const at::Tensor got = restore_sequence(full_tensor(t), 2, order).to(at::kDouble);
      const double scale = want[i].abs().max().item<double>();
      const double off = (got - want[i]).abs().max().item<double>();
      EXPECT_LE(off, of.tolerance * std::max(1.0, scale))
          << "result " << i << " of " << attention_kernel_name(of.kernel) << " by "
          << context_method_name(method) << ", " << c10::toString(of.dtype);
      ++i;
    }
  });
}

TEST_F(ParallelCuda, EveryKernelEqualsFullAttention) {
  for (const KernelCase& of : kKernelCases) {
    for (const auto method :
         {ContextMethod::ring, ContextMethod::all_gather, ContextMethod::all_to_all}) {
      for (const bool causal : {false, true}) expect_same(of, method, causal, 4, 64);
    }
  }
}

TEST_F(ParallelCuda, HeadsAreSharedAndWidthsPadded) {
  for (const KernelCase& of : kKernelCases) {
    expect_same(of, ContextMethod::ring, true, 2, 64);
    expect_same(of, ContextMethod::ring, true, 4, 20);
  }
}

TEST_F(ParallelCuda, MasksOfKeysApply) {
  const at::Tensor mask =
      at::arange(200, at::TensorOptions(c10::kCUDA)).remainder(7).ne(3).view({1, 1, 1, 200});
  for (const KernelCase& of : kKernelCases) {
    if (of.kernel == AttentionKernel::flash) continue;  // takes no mask
    expect_same(of, ContextMethod::ring, false, 4, 64, mask);
  }
}

TEST_F(ParallelCuda, ExpertsEqualOneRank) {
  for (const auto dtype : {at::kDouble, at::kFloat, at::kBFloat16}) {
    const auto options = at::TensorOptions(c10::kCUDA).dtype(dtype);
    const at::Tensor x = at::randn({64, 32}, options), up = at::randn({8, 32, 64}, options);
    const at::Tensor down = at::randn({8, 64, 32}, options) / 8, gate = at::randn({64, 2}, options);
    const at::Tensor choice = at::randint(8, {64, 2}, options.dtype(at::kLong));
    std::vector<at::Tensor> want;
    const auto run = [&](const std::string& text, std::vector<at::Tensor>* keep) {
      const DeviceMesh mesh = comm::init_device_mesh(text);
      const auto put = [&](const at::Tensor& t) {
        return distribute_tensor(t, mesh, {Shard(0)}, {.source = std::nullopt});
      };
      at::Tensor sx = put(x).set_requires_grad(true), w = put(up).set_requires_grad(true);
      const at::Tensor d = put(down);
      const auto result =
          expert_parallel(sx, put(choice), put(gate),
                          [&](const at::Tensor& rows, const ExpertRows& experts) {
                            return experts.matmul(at::silu(experts.matmul(rows, w)), d);
                          },
                          {.experts = 8});
      result.out.pow(2).sum().backward();
      std::vector<at::Tensor> got = {full_tensor(result.out.detach()), full_tensor(sx.grad()),
                                     full_tensor(w.grad())};
      if (keep != nullptr) *keep = got;
      return got;
    };
    comm::run_ranks(1, [&](int) { run("cuda:ep=1", &want); });
    comm::run_ranks(4, [&](int) {
      const auto got = run("cuda:ep=4", nullptr);
      const double tolerance = dtype == at::kDouble ? 1e-9 : dtype == at::kFloat ? 1e-3 : 0.1;
      for (size_t i = 0; i < got.size(); ++i) {
        const double scale = want[i].abs().max().item<double>();
        EXPECT_LE((got[i] - want[i]).abs().max().item<double>(), tolerance * std::max(1.0, scale))
            << "result " << i << " of " << c10::toString(dtype);
      }
    });
  }
}

}  // namespace parallel_cuda_test
}  // namespace tessera
