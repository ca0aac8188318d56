// Results have the strides that libtorch's kernels give them, also where its Meta kernels do not.
#include <ATen/Functions.h>
#include <gtest/gtest.h>

#include "tessera/base/text.h"
#include "tessera/comm/world.h"
#include "tessera/dtensor/dtensor.h"
#include "tests/support/ranks.h"
#include "tests/support/training.h"

namespace tessera {
namespace result_stride_test {

using test::test_numbers;

at::Tensor per_channel(const at::Tensor& x, double value) {
  return at::full({x.size(1)}, value, at::kDouble);
}

using Op = at::Tensor (*)(const at::Tensor& x, at::Tensor& mean, at::Tensor& var);

const std::vector<std::pair<const char*, Op>> kOps = {
    {"batch norm in training",
     [](auto& x, auto& m, auto& v) {
       return at::batch_norm(x, {}, {}, m, v, true, 0.1, 1e-5, false);
     }},
    {"batch norm in evaluation",
     [](auto& x, auto& m, auto& v) {
       return at::batch_norm(x, {}, {}, m, v, false, 0.1, 1e-5, false);
     }},
    {"batch norm with an update",
     [](auto& x, auto& m, auto& v) {
       return std::get<0>(at::_batch_norm_with_update(x, {}, {}, m, v, 0.1, 1e-5));
     }},
    {"batch norm without statistics",
     [](auto& x, auto&, auto&) {
       return std::get<0>(at::_native_batch_norm_legit(x, {}, {}, true, 0.1, 1e-5));
     }},
    {"gradient of batch norm",
     [](auto& x, auto& m, auto& v) {
       return std::get<0>(
           at::native_batch_norm_backward(x, x, {}, m, v, m, v, true, 1e-5, {true, false, false}));
     }},
    {"instance norm",
     [](auto& x, auto&, auto&) {
       return x.dim() < 3 ? x : at::instance_norm(x, {}, {}, {}, {}, true, 0.1, 1e-5, false);
     }},
    {"layer norm", [](auto& x, auto&, auto&) { return at::layer_norm(x, {x.size(-1)}); }},
    {"softmax", [](auto& x, auto&, auto&) { return x.softmax(1); }},
    {"log_softmax", [](auto& x, auto&, auto&) { return x.log_softmax(1); }},
    {"bernoulli", [](auto& x, auto&, auto&) { return at::bernoulli(x * 0 + 1); }},
    {"bernoulli by a number", [](auto& x, auto&, auto&) { return at::bernoulli(x, 1.0); }},
    {"gradient of softmax",
     [](auto& x, auto&, auto&) { return at::_softmax_backward_data(x, x, 1, at::kDouble); }},
    {"gradient of log_softmax",
     [](auto& x, auto&, auto&) { return at::_log_softmax_backward_data(x, x, 1, at::kDouble); }},
};

TEST(ResultStride, IsThatOfThePlainOpForPermutedInputs) {
  const std::vector<std::vector<int64_t>> orders = {{1, 0},       {1, 0, 2},    {0, 2, 1},
                                                    {0, 3, 1, 2}, {1, 0, 3, 2}, {3, 1, 2, 0}};
  test::run_ranks(2, [&](int) {
    const DeviceMesh mesh = comm::init_device_mesh("dp=2");
    for (const auto& order : orders) {
      const at::Tensor base = test_numbers(std::vector<int64_t>(order.size(), 4), 11);
      for (const char* placement : {"S0", "S1", "R"}) {
        const at::Tensor sharded =
            distribute_tensor(base, mesh, parse_placements(placement)).permute(order);
        for (const auto& [name, op] : kOps) {
          const std::string what = join_text(name, " ", placement, " {", list_text(order), "}");
          const at::Tensor x = base.permute(order);
          at::Tensor mean = per_channel(x, 0), var = per_channel(x, 1);
          at::Tensor sharded_mean = distribute_tensor(mean, mesh, {Replicate()});
          at::Tensor sharded_var = distribute_tensor(var, mesh, {Replicate()});
          const at::Tensor want = op(x, mean, var);
          const at::Tensor found = op(sharded, sharded_mean, sharded_var);
          EXPECT_EQ(found.strides(), want.strides()) << what;
          EXPECT_TRUE(at::allclose(full_tensor(found), want)) << what;
        }
      }
    }
  });
}

}  // namespace result_stride_test
}  // namespace tessera
