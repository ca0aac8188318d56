// A decision holds for every call that has its key, so all that a rule looks at is in the key: the
// numbers of a call too, also of a rule of the program.
#include <ATen/Functions.h>
#include <gtest/gtest.h>
#include <torch/library.h>

#include "tessera/base/errors.h"
#include "tessera/base/shape.h"
#include "tessera/comm/threads.h"
#include "tessera/cost/machine.h"
#include "tessera/dtensor/dispatch/caches.h"
#include "tessera/dtensor/dtensor.h"
#include "tessera/dtensor/kernels/own_ops.h"
#include "tests/support/parts.h"
#include "tests/support/ranks.h"

namespace tessera {
namespace decision_key_test {

using comm::init_device_mesh;
using test::run_ranks;
using test::whole_numbers;

uint64_t misses() { return cache_stats().decision_misses; }

at::Tensor fours(const DeviceMesh& mesh) {
  return from_local(at::ones({2, 2}, at::kDouble), mesh, {Partial()});
}

TEST(DecisionKey, HasTheNumberThatATableReads) {
  run_ranks(4, [](int) {
    const DeviceMesh mesh = init_device_mesh("tp=4");
    const at::Tensor full = at::full({2, 2}, 4.0, at::kDouble);
    const at::Tensor plain = at::eye(2, at::kDouble).to(at::kBool);
    const at::Tensor mask = distribute_tensor(plain, mesh, {Replicate()});
    for (const double value : {0.0, -5.0, 0.0, 2.0}) {
      EXPECT_TRUE(at::equal(full_tensor(at::masked_fill(fours(mesh), mask, value)),
                            at::masked_fill(full, plain, value)))
          << value;
      EXPECT_TRUE(at::equal(full_tensor(at::constant_pad_nd(fours(mesh), {1, 0}, value)),
                            at::constant_pad_nd(full, {1, 0}, value)))
          << value;
      at::Tensor written = fours(mesh);
      written.masked_fill_(mask, value);
      EXPECT_TRUE(at::equal(full_tensor(written), at::masked_fill(full, plain, value))) << value;
    }
    // The same numbers as integers are other calls.
    for (const int64_t value : {0, -5}) {
      EXPECT_TRUE(at::equal(full_tensor(at::masked_fill(fours(mesh), mask, value)),
                            at::masked_fill(full, plain, value)))
          << value;
    }
  });
}

TEST(DecisionKey, HasTheNumbersOfReductions) {
  run_ranks(2, [](int) {
    const DeviceMesh mesh = init_device_mesh("tp=2");
    const at::Tensor full = whole_numbers({4, 3}, 3).abs();
    const at::Tensor x = distribute_tensor(full, mesh, {Shard(0)});
    const double inf = std::numeric_limits<double>::infinity();
    for (const double p : {1.0, 2.0, inf, 0.0, -inf, 3.0, 1.0}) {
      EXPECT_TRUE(
          at::allclose(full_tensor(at::linalg_vector_norm(x, p)), at::linalg_vector_norm(full, p)))
          << p;
      EXPECT_TRUE(at::allclose(full_tensor(at::norm(x, p)), at::norm(full, p))) << p;
    }
    // From a number to itself means from the least to the largest element, which no rank knows.
    for (const auto& [least, most] : {std::pair{-8, 8}, {0, 0}, {0, 5}, {0, 0}, {-2, 9}, {1, 1}}) {
      EXPECT_TRUE(
          at::equal(full_tensor(at::histc(x, 4, least, most)), at::histc(full, 4, least, most)))
          << least << " " << most;
    }
  });
}

/// Numbers that no rule reads change from step to step: they must not cost a decision each.
TEST(DecisionKey, HasNoNumberThatNobodyReads) {
  run_ranks(1, [](int) {
    const DeviceMesh mesh = init_device_mesh("tp=1");
    const at::Tensor x = distribute_tensor(whole_numbers({4, 3}), mesh, {Shard(0)});
    const at::Tensor mask = distribute_tensor(at::ones({4, 3}, at::kBool), mesh, {Shard(0)});
    const auto step = [&](double number) {
      at::Tensor y = at::mul(x, number);
      y.add_(x, number);
      y.addcdiv_(x, x, number);
      y.masked_fill_(mask, number);
      at::_foreach_mul_({y, y}, std::vector<at::Scalar>{number, number});
      return at::clamp(at::pow(y, number), number);
    };
    step(2);
    step(3);
    const uint64_t before = misses();
    for (const double number : {4.0, 5.5, 7.0}) step(number);
    EXPECT_EQ(misses(), before);
  });
}

/// Has a rule that reads the factor: rows may be sharded where it is 1.
at::Tensor scaled_cpu(const at::Tensor& x, double factor) { return x * factor; }

at::Tensor call_scaled(const char* op, const at::Tensor& x, double factor) {
  return c10::Dispatcher::singleton()
      .findSchemaOrThrow(op, "")
      .typed<at::Tensor(const at::Tensor&, double)>()
      .call(x, factor);
}

TEST(DecisionKey, HasTheNumberThatAUsersRuleReads) {
  torch::Library library(torch::Library::FRAGMENT, "decision_key_test", std::nullopt, __FILE__,
                         __LINE__);
  library.def("scaled(Tensor x, float factor) -> Tensor");
  library.impl("scaled", torch::dispatch(c10::DispatchKey::CPU, scaled_cpu));
  rules::Rule rule;
  rule.op = "decision_key_test::scaled";
  rule.text = "code: rows where the factor is one";
  rule.rows = [](const rules::OpCall& call, int) {
    std::vector<rules::Row> out;
    const auto& factor = std::get<rules::Number>(call.args[1].value);
    if (factor.to_double() == 1.0) out.push_back({{Shard(0)}, {Shard(0)}});
    return out;
  };
  rule.infer = [](const rules::OpCall& call) {
    const auto& x = std::get<Sharding>(call.args[0].value);
    const std::vector<int64_t> shape(x.shape().begin(), x.shape().end());
    return std::vector<rules::ResultMeta>{{shape, contiguous_stride(shape), x.dtype()}};
  };
  tessera::register_rule(rule);
  run_ranks(2, [](int) {
    const DeviceMesh mesh = init_device_mesh("tp=2");
    const at::Tensor full = whole_numbers({4, 3});
    const at::Tensor x = distribute_tensor(full, mesh, {Shard(0)});
    for (const double factor : {1.0, 2.0, 1.0, 3.0}) {
      const at::Tensor y = call_scaled("decision_key_test::scaled", x, factor);
      EXPECT_EQ(sharding(y).placements_text(), factor == 1.0 ? "S0" : "R") << factor;
      EXPECT_TRUE(at::equal(full_tensor(y), full * factor)) << factor;
    }
  });
}

/// A kernel for meta tensors reads what it likes; where the result's shape depends on a number, the
/// decision does.
TEST(DecisionKey, HasTheNumberThatAResultsShapeDependsOn) {
  torch::Library library(torch::Library::FRAGMENT, "decision_key_test", std::nullopt, __FILE__,
                         __LINE__);
  library.def("stretched(Tensor x, float factor) -> Tensor");
  library.impl("stretched",
               torch::dispatch(c10::DispatchKey::CompositeExplicitAutograd, [](const at::Tensor& x,
                                                                               double factor) {
                 return at::ones({x.size(0), static_cast<int64_t>(factor)}, x.options());
               }));
  tessera::register_rule("decision_key_test::stretched", "mN -> mK");
  run_ranks(2, [](int) {
    const DeviceMesh mesh = init_device_mesh("tp=2");
    const at::Tensor x = distribute_tensor(whole_numbers({4, 3}), mesh, {Shard(0)});
    for (const double factor : {2.0, 5.0, 2.0}) {
      const at::Tensor y = call_scaled("decision_key_test::stretched", x, factor);
      EXPECT_EQ(y.size(1), static_cast<int64_t>(factor));
      EXPECT_TRUE(at::equal(full_tensor(y), at::ones_like(full_tensor(y))));
    }
    at::Tensor out = distribute_tensor(whole_numbers({4}), mesh, {Shard(0)});
    at::arange_out(out, 0, 8, 2);
    EXPECT_TRUE(at::equal(full_tensor(out), at::arange(0, 8, 2, at::kDouble)));
    EXPECT_THROW(at::arange_out(out, 0, 6, 2), InvalidArgument) << "three numbers for four places";
    at::arange_out(out, 1, 9, 2);
    EXPECT_TRUE(at::equal(full_tensor(out), at::arange(1, 9, 2, at::kDouble)));
  });
}

/// What moves where is decided by cost: decisions for another machine are others.
TEST(DecisionCache, ForgetsWhatAnotherMachineDecided) {
  const cost::Machine before = cost::default_machine("cpu");
  run_ranks(1, [](int) {
    const at::Tensor x =
        distribute_tensor(whole_numbers({4, 3}), init_device_mesh("tp=1"), {Shard(0)});
    const auto decisions_of_a_call = [&] {
      const uint64_t made = misses();
      at::mul(x, x);
      return misses() - made;
    };
    decisions_of_a_call();
    EXPECT_EQ(decisions_of_a_call(), 0U);
    cost::Machine other;
    other.within_host = {1, 1, 1e3};
    cost::set_default_machine("cpu", other);
    EXPECT_EQ(decisions_of_a_call(), 1U);
    EXPECT_EQ(decisions_of_a_call(), 0U);
  });
  cost::set_default_machine("cpu", before);
}

/// A program that meets ever new shapes.
TEST(DecisionCache, IsBoundedInBytes) {
  clear_caches();
  run_ranks(1, [](int) {
    const DeviceMesh mesh = init_device_mesh("tp=1");
    uint64_t most = 0;
    for (int64_t n = 1; n <= 6000; ++n) {
      const at::Tensor x = from_local(at::empty({n}), mesh, {Shard(0)}, {.even = true});
      at::add(x, x);
      at::mul(x, x);
      at::neg(x);
      at::sum(x);
      at::exp(x);
      at::relu(x);
      most = std::max(most, cache_stats().decision_bytes);
    }
    EXPECT_GT(most, uint64_t{1} << 20);
    EXPECT_LT(most, uint64_t{66} << 20);
  });
}

}  // namespace decision_key_test
}  // namespace tessera
