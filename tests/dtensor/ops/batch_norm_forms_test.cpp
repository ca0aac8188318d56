// All forms of batch norm in training write the statistics of the whole batch on every rank.
#include <ATen/Functions.h>
#include <gtest/gtest.h>

#include "tessera/comm/world.h"
#include "tessera/dtensor/dtensor.h"
#include "tests/support/ranks.h"
#include "tests/support/training.h"

namespace tessera {
namespace batch_norm_forms_test {

using test::test_numbers;

/// The forms that other backends and compilers call have the same statistics.
TEST(BatchNormForms, WriteTheWholeStatistics) {
  const at::Tensor full = test_numbers({8, 4, 3}, 11), w = test_numbers({4}, 12);
  using Form = std::function<std::vector<at::Tensor>(const at::Tensor& x, const at::Tensor& w,
                                                     at::Tensor& mean, at::Tensor& var)>;
  const std::vector<std::pair<const char*, Form>> forms = {
      {"_native_batch_norm_legit",
       [](auto& x, auto& w, auto& m, auto& v) {
         auto [y, a, b] = at::_native_batch_norm_legit(x, w, w, m, v, true, 0.1, 1e-5);
         return std::vector<at::Tensor>{y, a, b};
       }},
      {"_native_batch_norm_legit.no_stats",
       [](auto& x, auto& w, auto&, auto&) {
         auto [y, a, b] = at::_native_batch_norm_legit(x, w, w, true, 0.1, 1e-5);
         return std::vector<at::Tensor>{y, a, b};
       }},
      {"_batch_norm_with_update",
       [](auto& x, auto& w, auto& m, auto& v) {
         auto [y, a, b, r] = at::_batch_norm_with_update(x, w, w, m, v, 0.1, 1e-5);
         return std::vector<at::Tensor>{y, a, b};
       }},
      {"_native_batch_norm_legit_functional",
       [](auto& x, auto& w, auto& m, auto& v) {
         auto [y, a, b, c, d] =
             at::_native_batch_norm_legit_functional(x, w, w, m, v, true, 0.1, 1e-5);
         return std::vector<at::Tensor>{y, a, b, c, d};
       }},
      {"batch_norm_update_stats",
       [](auto& x, auto&, auto& m, auto& v) {
         auto [a, b] = at::batch_norm_update_stats(x, m, v, 0.1);
         return std::vector<at::Tensor>{a, b};
       }},
      {"native_batch_norm.out",
       [](auto& x, auto& w, auto& m, auto& v) {
         at::Tensor y = at::empty_like(x), a = at::empty_like(m), b = at::empty_like(m);
         at::native_batch_norm_out(y, a, b, x, w, w, m, v, true, 0.1, 1e-5);
         return std::vector<at::Tensor>{y, a, b};
       }},
  };
  for (const auto& [name, form] : forms) {
    at::Tensor mean = at::zeros({4}, at::kDouble), var = at::ones({4}, at::kDouble);
    const auto want = form(full, w, mean, var);
    test::run_ranks(2, [&](int) {
      const DeviceMesh mesh = comm::init_device_mesh("dp=2");
      for (const char* input : {"S0", "S1", "S2", "R"}) {
        const auto whole = [&](const at::Tensor& t) {
          return distribute_tensor(t, mesh, {Replicate()});
        };
        at::Tensor m = whole(at::zeros({4}, at::kDouble)), v = whole(at::ones({4}, at::kDouble));
        const auto got =
            form(distribute_tensor(full, mesh, parse_placements(input)), whole(w), m, v);
        for (size_t i = 0; i < want.size(); ++i) {
          EXPECT_TRUE(at::allclose(full_tensor(got[i]), want[i]))
              << name << " " << input << " " << i;
        }
        EXPECT_TRUE(at::allclose(to_local(m), mean)) << name << " " << input;
        EXPECT_TRUE(at::allclose(to_local(v), var)) << name << " " << input;
      }
    });
  }
}

}  // namespace batch_norm_forms_test
}  // namespace tessera
