#include <ATen/TensorOperators.h>
#include <ATen/ops/_foreach_norm.h>
#include <ATen/ops/_log_softmax.h>
#include <ATen/ops/allclose.h>
#include <ATen/ops/argmax.h>
#include <ATen/ops/avg_pool2d.h>
#include <ATen/ops/batch_norm_update_stats.h>
#include <ATen/ops/conv2d.h>
#include <ATen/ops/cumsum.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/logsumexp.h>
#include <ATen/ops/max.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/topk.h>
#include <ATen/ops/var.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <gtest/gtest.h>

#include <functional>

#include "tessera/base/errors.h"
#include "tessera/comm/threads.h"
#include "tessera/comm/world.h"
#include "tessera/dtensor/dtensor.h"
#include "tessera/dtensor/policy.h"
#include "tessera/observe/recorder.h"
#include "tessera/rules/choice/explain.h"
#include "tessera/rules/registry/registry.h"
#include "tests/support/ranks.h"
#include "tests/support/spread.h"

/// Ops whose rows have kernels of their own: the rows say what runs, what it costs and what the
/// policy allows.
namespace tessera {
namespace kernel_rows_test {

using comm::init_device_mesh;
using rules::Explanation;
using rules::KernelComm;
using test::run_ranks;
using test::spread;

/// A call of an op, and the same for a rule.
struct Case {
  std::string op;
  std::vector<int64_t> shape;
  std::string placements;
  std::vector<rules::NamedArg> args;  ///< after the tensors
  std::function<at::Tensor(const at::Tensor& x, const at::Tensor& weight)> call;
  std::string kernel;
  KernelComm comm;
  std::string result;  ///< its placements
  std::vector<int64_t> weight = {};
};

using Ints = std::vector<int64_t>;

std::vector<Case> cases() {
  const auto first = [](const auto& both) { return std::get<0>(both); };
  return {
      {"aten::cumsum",
       {8, 64},
       "S1,R",
       {{"dim", int64_t{1}}},
       [](const at::Tensor& x, const at::Tensor&) { return at::cumsum(x, 1); },
       "cumsum",
       KernelComm::combine,
       "S1,R"},
      {"aten::cumsum",
       {8, 64},
       "S1,S1",
       {{"dim", int64_t{-1}}},
       [](const at::Tensor& x, const at::Tensor&) { return at::cumsum(x, -1); },
       "cumsum",
       KernelComm::combine,
       "S1,S1"},
      {"aten::cumsum",
       {8, 64},
       "S0,R",
       {{"dim", int64_t{1}}},
       [](const at::Tensor& x, const at::Tensor&) { return at::cumsum(x, 1); },
       "",
       KernelComm::none,
       "S0,R"},
      {"aten::topk",
       {8, 64},
       "S0,S1",
       {{"k", int64_t{3}}, {"dim", int64_t{1}}},
       [=](const at::Tensor& x, const at::Tensor&) { return first(at::topk(x, 3, 1)); },
       "topk",
       KernelComm::combine,
       "S0,R"},
      {"aten::argmax",
       {8, 64},
       "S0,S1",
       {{"dim", std::monostate()}},
       [](const at::Tensor& x, const at::Tensor&) { return at::argmax(x); },
       "extreme",
       KernelComm::combine,
       "R,R"},
      {"aten::max.dim",
       {8, 64},
       "S0,S1",
       {{"dim", int64_t{0}}, {"keepdim", false}},
       [=](const at::Tensor& x, const at::Tensor&) { return first(at::max(x, 0)); },
       "extreme",
       KernelComm::combine,
       "R,S0"},
      {"aten::var.correction",
       {8, 64},
       "S0,S1",
       {{"dim", Ints{1}}},
       [](const at::Tensor& x, const at::Tensor&) { return at::var(x, {1}); },
       "moments",
       KernelComm::combine,
       "S0,R"},
      {"aten::_log_softmax",
       {8, 64},
       "S0,S1",
       {{"dim", int64_t{-1}}, {"half_to_float", false}},
       [](const at::Tensor& x, const at::Tensor&) { return at::_log_softmax(x, -1, false); },
       "log_softmax",
       KernelComm::combine,
       "S0,S1"},
      {"aten::logsumexp",
       {8, 64},
       "S1,S1",
       {{"dim", Ints{1}}, {"keepdim", false}},
       [](const at::Tensor& x, const at::Tensor&) { return at::logsumexp(x, {1}); },
       "logsumexp",
       KernelComm::combine,
       "R,R"},
      {"aten::_foreach_norm.Scalar",
       {8, 64},
       "S0,R",
       {{"ord", int64_t{2}}},
       [](const at::Tensor& x, const at::Tensor&) { return at::_foreach_norm({x}, 2)[0]; },
       "foreach_norm",
       KernelComm::combine,
       "R,R"},
      {"aten::batch_norm_update_stats",
       {8, 6, 4},
       "S0,S1",
       {{"running_mean", Sharding()}, {"running_var", Sharding()}},
       [=](const at::Tensor& x, const at::Tensor&) {
         return first(at::batch_norm_update_stats(x, {}, {}, 0.1));
       },
       "batch_norm",
       KernelComm::combine,
       "R,S0"},
      {"aten::avg_pool2d",
       {2, 3, 16, 8},
       "S2,S1",
       {{"kernel_size", Ints{3}}, {"stride", Ints{1}}, {"padding", Ints{1}}},
       [](const at::Tensor& x, const at::Tensor&) { return at::avg_pool2d(x, 3, 1, 1); },
       "pooling",
       KernelComm::exchange,
       "S2,S1"},
      {"aten::convolution",
       {2, 4, 16, 8},
       "S2,S0",
       {{"bias", Sharding()},
        {"stride", Ints{1}},
        {"padding", Ints{1}},
        {"dilation", Ints{1}},
        {"transposed", false},
        {"output_padding", Ints{0}},
        {"groups", int64_t{1}}},
       [](const at::Tensor& x, const at::Tensor& weight) {
         return at::conv2d(x, weight, {}, 1, 1);
       },
       "convolution",
       KernelComm::exchange,
       "S2,S0",
       {4, 4, 3, 3}},
  };
}

/// What explain says of a call of these tensors.
Explanation explained(const Case& c, const at::Tensor& x, const at::Tensor& weight) {
  const bool is_norm = c.op.find("batch_norm") != std::string::npos;
  std::vector<rules::NamedArg> args = {{is_norm ? "input" : "self", sharding(x)}};
  if (weight.defined()) args.push_back({"weight", sharding(weight)});
  args.insert(args.end(), c.args.begin(), c.args.end());
  const rules::Rule* rule = rules::find_rule(c.op);
  EXPECT_NE(rule, nullptr) << c.op;
  return rules::explain(*rule, {c.op, args, device_mesh(x), {}});
}

TEST(KernelRows, AreWhatRuns) {
  run_ranks(4, [&](int) {
    const DeviceMesh mesh = init_device_mesh("a=2,b=2");
    for (const Case& c : cases()) {
      const std::string what = c.op + " " + c.placements;
      const at::Tensor full = at::randn(c.shape, at::kDouble);
      const at::Tensor kernel = c.weight.empty() ? at::Tensor() : at::randn(c.weight, at::kDouble);
      const at::Tensor x = spread(full, mesh, c.placements);
      const at::Tensor weight = kernel.defined() ? spread(kernel, mesh, "R,R") : kernel;
      const Explanation e = explained(c, x, weight);
      const auto& chosen = e.candidates.at(0);
      EXPECT_EQ(chosen.verdict, Explanation::Verdict::chosen) << what;
      EXPECT_EQ(chosen.kernel, c.kernel) << what << "\n" << e.to_text();
      EXPECT_EQ(chosen.comm, c.comm) << what;
      EXPECT_EQ(chosen.results.at(0), c.result) << what;
      EXPECT_TRUE(chosen.moves.empty()) << what;
      EXPECT_EQ(chosen.bytes > 0, c.comm != KernelComm::none) << what;
      for (const auto& refused : e.refused)
        EXPECT_NE(refused.operands, chosen.operands.at(0)) << what << "\n" << e.to_text();

      comm::Recorder recorder(*comm::current_world());
      const at::Tensor y = c.call(x, weight);
      EXPECT_EQ(sharding(y).placements_text(), c.result) << what;
      EXPECT_EQ(recorder.bytes() > 0, c.comm != KernelComm::none) << what;
    }
  });
}

TEST(KernelRows, ThatCombineAreImplicitCommunicationAndHalosAreNot) {
  run_ranks(4, [&](int) {
    const DeviceMesh mesh = init_device_mesh("a=2,b=2");
    for (const Case& c : cases()) {
      const at::Tensor x = spread(at::randn(c.shape, at::kDouble), mesh, c.placements);
      const at::Tensor weight =
          c.weight.empty() ? at::Tensor() : spread(at::randn(c.weight, at::kDouble), mesh, "R,R");
      const CommPolicy explicit_only(ImplicitComm::forbid);
      if (c.comm == KernelComm::combine) {
        EXPECT_THROW(c.call(x, weight), NotSupported) << c.op << " " << c.placements;
      } else {
        EXPECT_NO_THROW(c.call(x, weight)) << c.op << " " << c.placements;
      }
    }
  });
}

/// In-place and out= forms follow the rule of the functional one, kernel included.
TEST(KernelRows, HoldForInPlaceAndOutForms) {
  run_ranks(4, [&](int) {
    const DeviceMesh mesh = init_device_mesh("tp=4");
    const at::Tensor full = at::randn({4, 64}, at::kDouble);
    const at::Tensor x = spread(full, mesh, "S1");
    comm::Recorder recorder(*comm::current_world());
    at::Tensor written = x.clone();
    written.cumsum_(1);
    EXPECT_LT(recorder.bytes(), 4 * 64 * 8) << "totals only";
    EXPECT_EQ(sharding(written).placements_text(), "S1");
    EXPECT_TRUE(at::allclose(full_tensor(written), at::cumsum(full, 1)));
    at::Tensor out = at::zeros_like(x);
    at::cumsum_out(out, x, 1);
    EXPECT_TRUE(at::allclose(full_tensor(out), at::cumsum(full, 1)));
    at::Tensor value = spread(at::zeros({4, 3}, at::kDouble), mesh, "R");
    at::Tensor place = spread(at::zeros({4, 3}, at::kLong), mesh, "R");
    at::topk_out(value, place, x, 3, 1);
    EXPECT_TRUE(at::equal(full_tensor(value), std::get<0>(at::topk(full, 3, 1))));
    EXPECT_TRUE(at::equal(full_tensor(place), std::get<1>(at::topk(full, 3, 1))));
  });
}

/// Addends of a running sum are summed each by itself.
TEST(KernelRows, CombineWithPartialValuesOnOtherAxes) {
  run_ranks(4, [&](int) {
    const DeviceMesh mesh = init_device_mesh("a=2,b=2");
    const at::Tensor full = at::randn({4, 16}, at::kDouble);
    const at::Tensor x =
        from_local(full.narrow(1, 8 * mesh.my_coordinate()->at(0), 8), mesh, {Shard(1), Partial()});
    const at::Tensor y = at::cumsum(x, 1);
    EXPECT_EQ(sharding(y).placements_text(), "S1,P(sum)");
    EXPECT_TRUE(at::allclose(full_tensor(y), at::cumsum(full * 2, 1)));
  });
}

}  // namespace kernel_rows_test
}  // namespace tessera
