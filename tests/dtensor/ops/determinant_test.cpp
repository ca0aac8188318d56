// Gradients of determinants, whose formula asks how the operand lies in memory.
#include <ATen/Functions.h>
#include <gtest/gtest.h>

#include <functional>
#include <vector>

#include "tessera/comm/threads.h"
#include "tessera/comm/world.h"
#include "tessera/dtensor/dtensor.h"
#include "tests/support/ranks.h"
#include "tests/support/training.h"

namespace tessera {
namespace determinant_test {

using Function = std::function<at::Tensor(const at::Tensor&)>;

const std::vector<std::pair<const char*, Function>> kViews = {
    {"row-major", [](const at::Tensor& x) { return x.narrow(2, 0, 4).contiguous(); }},
    {"x[:, :, :4]", [](const at::Tensor& x) { return x.narrow(2, 0, 4); }},
    {"x[:, :, 1:5]", [](const at::Tensor& x) { return x.narrow(2, 1, 4); }},
    {"x[::2, :, :4]", [](const at::Tensor& x) { return x.slice(0, 0, 4, 2).narrow(2, 0, 4); }},
    {"x[1, :, 1:5]", [](const at::Tensor& x) { return x.select(0, 1).narrow(1, 1, 4); }},
    {"transposed", [](const at::Tensor& x) { return x.narrow(2, 0, 4).mT(); }},
    {"column-major", [](const at::Tensor& x) { return x.narrow(2, 0, 4).contiguous().mT(); }},
    {"permuted", [](const at::Tensor& x) { return x.narrow(2, 0, 4).transpose(0, 1); }},
    {"expanded",
     [](const at::Tensor& x) {
       return x.narrow(0, 0, 1).narrow(2, 0, 4).expand({3, 4, 4});
     }},
    {"1x1", [](const at::Tensor& x) { return x.narrow(1, 0, 1).narrow(2, 2, 1); }},
};

const std::vector<std::pair<const char*, Function>> kFunctions = {
    {"det", [](const at::Tensor& x) { return at::linalg_det(x); }},
    {"slogdet", [](const at::Tensor& x) { return std::get<1>(at::linalg_slogdet(x)); }},
    {"logdet", [](const at::Tensor& x) { return at::logdet(x.matmul(x.mT())); }},
};

at::Tensor gradient(const Function& function, const Function& view, const at::Tensor& of) {
  const at::Tensor x = of.detach().requires_grad_(true);
  function(view(x)).sum().backward();
  return x.grad();
}

TEST(Determinant, GradientsAreThoseOfTheWholeMatricesForEveryViewAndPlacement) {
  const at::Tensor whole =
      test::test_numbers({4, 4, 6}, 1).to(at::kDouble) + at::eye(6, at::kDouble).narrow(0, 0, 4);
  test::run_ranks(2, [&](int) {
    const DeviceMesh mesh = comm::init_device_mesh("tp=2");
    std::vector<at::Tensor> given = {from_local(whole / 2, mesh, {Partial()})};
    for (const Placement& placement : {Shard(0), Shard(1), Shard(2), Replicate()}) {
      given.push_back(distribute_tensor(whole, mesh, {placement}));
    }
    for (const auto& [name, function] : kFunctions) {
      for (const auto& [text, view] : kViews) {
        const at::Tensor expected = gradient(function, view, whole);
        for (const at::Tensor& x : given) {
          const at::Tensor found = full_tensor(gradient(function, view, x));
          EXPECT_TRUE(at::allclose(found, expected, 1e-9, 1e-9))
              << name << " of " << text << ", " << placements(x)[0].to_text();
        }
      }
    }
  });
}

}  // namespace determinant_test
}  // namespace tessera
