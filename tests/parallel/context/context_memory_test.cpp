#include <ATen/TensorOperators.h>
#include <ATen/ops/scaled_dot_product_attention.h>
#include <gtest/gtest.h>

#include "tessera/comm/world.h"
#include "tessera/dtensor/dtensor.h"
#include "tessera/parallel/context/context_parallel.h"
#include "tests/support/peak_bytes.h"
#include "tests/support/ranks.h"
#include "tests/support/training.h"

/// Nothing of size sequence x sequence is held, neither forward nor backward.
namespace tessera {
namespace context_memory_test {

using test::peak_bytes_of;

constexpr int64_t kRows = 2048;
constexpr int64_t kHeads = 4;
constexpr int64_t kWidth = 8;
constexpr int64_t kSquareBytes = kRows * kRows * 8;  // of one head

at::Tensor numbers(uint64_t seed) { return test::test_numbers({1, kHeads, kRows, kWidth}, seed); }

int64_t peak_of(ContextMethod method, const AttentionOptions& attention) {
  const DeviceMesh mesh = comm::init_device_mesh("cp=4");
  const auto put = [&](uint64_t seed) {
    return distribute_tensor(numbers(seed), mesh, {Shard(2)}, {.source = std::nullopt});
  };
  at::Tensor q = put(1).set_requires_grad(true);
  at::Tensor k = put(2).set_requires_grad(true);
  at::Tensor v = put(3).set_requires_grad(true);
  const at::Tensor grad = put(4);
  return peak_bytes_of(
      [&] { context_parallel_attention(q, k, v, attention, {.method = method}).backward(grad); });
}

TEST(ContextMemory, TheCounterSeesAMatrixOfScores) {
  at::Tensor q = numbers(1).narrow(1, 0, 1);
  const int64_t peak = peak_bytes_of([&] { q.matmul(q.transpose(-1, -2)).softmax(-1).matmul(q); });
  EXPECT_GE(peak, kSquareBytes);
}

TEST(ContextMemory, NoMethodHoldsAMatrixOfScores) {
  test::run_ranks(4, [&](int) {
    for (const auto method :
         {ContextMethod::ring, ContextMethod::all_gather, ContextMethod::all_to_all}) {
      const int64_t peak = peak_of(method, {.is_causal = true});
      EXPECT_GT(peak, kRows / 4 * kWidth * 8);  // it counts something
      EXPECT_LT(peak, kSquareBytes / 8) << context_method_name(method);
    }
  });
}

TEST(ContextMemory, NorOfAMaskThatIsAFunction) {
  const MaskFunction window = [](const at::Tensor& q, const at::Tensor& k) {
    return (q - k).abs().lt(100);
  };
  test::run_ranks(4, [&](int) {
    for (const auto method : {ContextMethod::ring, ContextMethod::all_to_all}) {
      EXPECT_LT(peak_of(method, {.mask_function = window}), kSquareBytes / 2)
          << context_method_name(method);
    }
  });
}

}  // namespace context_memory_test
}  // namespace tessera
