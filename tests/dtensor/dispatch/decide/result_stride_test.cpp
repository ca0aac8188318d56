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

/// Indexes, placed where `x` is.
at::Tensor like(std::vector<int64_t> indexes, const at::Tensor& x) {
  const at::Tensor plain = at::tensor(indexes, at::kLong);
  return is_dtensor(x) ? distribute_tensor(plain, sharding(x).mesh(), {Replicate()}) : plain;
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
    {"index_fill",
     [](auto& x, auto&, auto&) {
       return x.index_fill(0, like({0, 1}, x), 0.5);
     }},
    {"index_add",
     [](auto& x, auto&, auto&) {
       return x.index_add(0, like({1, 0}, x), x.slice(0, 0, 2));
     }},
    {"scatter_add",
     [](auto& x, auto&, auto&) { return x.scatter_add(0, at::zeros_like(x, at::kLong), x); }},
    {"copysign", [](auto& x, auto&, auto&) { return x.copysign(x.sum()); }},
    {"floor_divide",
     [](auto& x, auto&, auto&) { return x.floor_divide(x.select(0, 1).abs() + 1); }},
    {"division that rounds",
     [](auto& x, auto&, auto&) { return x.div((x * 2).abs() + 1, "floor"); }},
    {"division that rounds, by a number",
     [](auto& x, auto&, auto&) { return x.div(0.25, "trunc"); }},
    {"gradient of dropout",
     [](auto& x, auto&, auto&) { return at::native_dropout_backward(x, x > 0, 2); }},
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
        const at::Tensor sharded_base = distribute_tensor(base, mesh, parse_placements(placement));
        for (const auto& [name, op] : kOps) {
          const bool gaps = placement[1] != '1' && order.size() == 2;  // not dense either
          const std::string what = join_text(name, " ", placement, " {", list_text(order), "}");
          const auto view = [&](const at::Tensor& whole) {
            return (gaps ? whole.slice(1, 0, 4, 2) : whole).permute(order);
          };
          const at::Tensor x = view(base), sharded = view(sharded_base);
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
