#include <ATen/TensorOperators.h>
#include <ATen/ops/ones.h>
#include <gtest/gtest.h>

#include "tessera/base/errors.h"
#include "tessera/comm/world.h"
#include "tessera/dtensor/dtensor.h"
#include "tessera/parallel/context/context_parallel.h"
#include "tests/support/ranks.h"
#include "tests/support/training.h"

/// What context_parallel_attention refuses, and the texts of its errors.
namespace tessera {
namespace context_errors_test {

at::Tensor numbers(uint64_t seed) { return test::test_numbers({2, 4, 16, 8}, seed); }

TEST(ContextErrors, RefusesWhatDoesNotFit) {
  test::run_ranks(2, [&](int) {
    const DeviceMesh mesh = comm::init_device_mesh("cp=2");
    const at::Tensor query = numbers(1), key = numbers(2), value = numbers(3);
    const auto put = [&](const at::Tensor& t, const char* placements) {
      return distribute_tensor(t, mesh, parse_placements(placements));
    };
    const auto message = [&](const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                             const AttentionOptions& attention = {},
                             const ContextParallelOptions& options = {}) -> std::string {
      try {
        context_parallel_attention(q, k, v, attention, options);
      } catch (const InvalidArgument& error) {
        return error.what();
      } catch (const NotSupported& error) {
        return error.what();
      }
      return "no error";
    };
    const at::Tensor q = put(query, "S2"), k = put(key, "S2"), v = put(value, "S2");
    const auto expect = [](const std::string& text, const char* part) {
      EXPECT_NE(text.find(part), std::string::npos) << text;
    };
    expect(message(query, k, v), "must be sharded");
    expect(message(put(query, "R"), k, v), "redistribute the queries to S2");
    expect(message(q, k, put(value, "R")), "the same placements");
    expect(message(put(query, "S3"), put(key, "S3"), put(value, "S3")), "width");
    expect(message(q, k, v, {}, {.order = SequenceOrder::head_tail(12, 2)}), "12 positions");
    expect(message(q, k, v, {}, {.documents = {{0, 5}}}), "must ascend from 0 to");
    expect(message(q, k, v, {}, {.kernel = AttentionKernel::flash}), "does not take");
    expect(message(q, k, v, {.mask = at::ones({3, 5}, at::kBool)}), "elements, not 1 or 16");
    const MaskFunction flat = [](const at::Tensor& a, const at::Tensor& b) {
      return a.flatten().sub(b.flatten()).unsqueeze(1).lt(4).expand({-1, 3});
    };
    expect(message(q, k, v, {.mask_function = flat}), "does not broadcast to 2x4x8x8");
    at::Tensor leaf = put(query, "S2").set_requires_grad(true);
    const at::Tensor out = context_parallel_attention(leaf, k, v);
    EXPECT_THROW(out.sum().backward({}, true, /*create_graph=*/true), NotSupported);
  });
}

}  // namespace context_errors_test
}  // namespace tessera
