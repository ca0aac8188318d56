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
      at::_foreach_add_({y, y}, {x, x}, number);
      at::_foreach_addcdiv({y, y}, {x, x}, {x, x}, number);
      y.lerp_(x, number).addcmul_(x, x, number).clamp_(-number, number);
      at::addmm(y, x, at::mm(x.t(), x), number, number);
      at::native_dropout(y, number / 8, true);
      at::leaky_relu(y, number);
      at::where(mask, y, number);
      at::full_like(y, number);
      at::batch_norm(y, {}, {}, {}, {}, true, number / 8, 1e-5, false);
      at::layer_norm(y, {3}, {}, {}, number);
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
    // One number more in each argument changes nothing here.
    at::Tensor one = distribute_tensor(whole_numbers({1}), mesh, {Replicate()});
    at::arange_out(one, 0, 1, 1);
    EXPECT_THROW(at::arange_out(one, 0, 4, 1), InvalidArgument);
    EXPECT_TRUE(at::equal(full_tensor(one), at::zeros({1}, at::kDouble)));
  });
}

/// The shape and dtype are constant over ranges of numbers: no other number that is tried once
/// shows that they are read.
TEST(DecisionKey, HasEveryNumberThatAMetaKernelMayRead) {
  torch::Library library(torch::Library::FRAGMENT, "decision_key_test", std::nullopt, __FILE__,
                         __LINE__);
  library.def("steps(Tensor x, float factor) -> Tensor");
  library.impl("steps",
               torch::dispatch(c10::DispatchKey::CompositeExplicitAutograd,
                               [](const at::Tensor& x, double factor) {
                                 const auto columns = static_cast<int64_t>(factor) / 4 + 1;
                                 const auto dtype = factor > 9 ? at::kInt : at::kDouble;
                                 return at::ones({x.size(0), columns}, x.options().dtype(dtype));
                               }));
  tessera::register_rule("decision_key_test::steps", "mN -> mK");
  run_ranks(2, [](int) {
    const DeviceMesh mesh = init_device_mesh("tp=2");
    const at::Tensor full = whole_numbers({4, 3});
    for (const double factor : {8.0, 1.0, 5.0, 12.0, 8.0, 14.0}) {
      for (const Placement& placement : {Shard(0), Shard(1), Replicate()}) {
        const at::Tensor x = distribute_tensor(full, mesh, {placement});
        const at::Tensor y = call_scaled("decision_key_test::steps", x, factor);
        const at::Tensor expected = call_scaled("decision_key_test::steps", full, factor);
        EXPECT_EQ(y.sizes(), expected.sizes()) << factor;
        EXPECT_EQ(y.scalar_type(), expected.scalar_type()) << factor;
        EXPECT_TRUE(at::equal(full_tensor(y), expected)) << factor;
      }
    }
  });
}

TEST(DecisionKey, HasComplexNumbersAndTextsThatAMetaKernelMayRead) {
  torch::Library library(torch::Library::FRAGMENT, "decision_key_test", std::nullopt, __FILE__,
                         __LINE__);
  library.def("turns(Tensor x, Scalar factor, str[] names) -> Tensor");
  library.impl("turns",
               torch::dispatch(
                   c10::DispatchKey::CompositeExplicitAutograd,
                   [](const at::Tensor& x, const at::Scalar& factor, c10::List<std::string> names) {
                     auto columns = static_cast<int64_t>(factor.toComplexDouble().imag());
                     for (size_t i = 0; i < names.size(); ++i) {
                       columns += static_cast<int64_t>(names.get(i).size());
                     }
                     return at::ones({x.size(0), columns}, x.options());
                   }));
  tessera::register_rule("decision_key_test::turns", "mN -> mK");
  const auto turns = [](const at::Tensor& x, double imaginary, const std::string& name) {
    return c10::Dispatcher::singleton()
        .findSchemaOrThrow("decision_key_test::turns", "")
        .typed<at::Tensor(const at::Tensor&, const at::Scalar&, c10::List<std::string>)>()
        .call(x, c10::complex<double>(1, imaginary), c10::List<std::string>({"ab", name}));
  };
  run_ranks(2, [&](int) {
    const at::Tensor full = whole_numbers({4, 3});
    const at::Tensor x = distribute_tensor(full, init_device_mesh("tp=2"), {Shard(0)});
    for (const auto& [imaginary, name] :
         std::vector<std::pair<double, std::string>>{{1, "a"}, {3, "a"}, {1, "abc"}, {1, "a"}}) {
      EXPECT_TRUE(at::equal(full_tensor(turns(x, imaginary, name)), turns(full, imaginary, name)))
          << imaginary << name;
    }
  });
}

/// Ranks outside the mesh learn the results of an op without a Meta kernel by running it.
TEST(DecisionKey, HasEveryNumberOfAnOpThatRunsOutside) {
  torch::Library library(torch::Library::FRAGMENT, "decision_key_test", std::nullopt, __FILE__,
                         __LINE__);
  library.def("wide(Tensor x, float factor) -> Tensor");
  library.impl("wide",
               torch::dispatch(c10::DispatchKey::CPU, [](const at::Tensor& x, double factor) {
                 const auto dtype = factor > 3 ? at::kFloat : at::kDouble;
                 return at::ones({x.size(0), static_cast<int64_t>(factor)}, dtype);
               }));
  run_ranks(3, [](int) {
    const DeviceMesh mesh = init_device_mesh("tp=2@0,1");
    const at::Tensor full = whole_numbers({4, 3});
    const at::Tensor x = distribute_tensor(full, mesh, {Shard(0)});
    for (const double factor : {2.0, 5.0, 2.0, 3.0}) {
      const at::Tensor y = call_scaled("decision_key_test::wide", x, factor);
      const at::Tensor expected = call_scaled("decision_key_test::wide", full, factor);
      EXPECT_EQ(y.sizes(), expected.sizes()) << factor;
      EXPECT_EQ(y.scalar_type(), expected.scalar_type()) << factor;
    }
  });
}

/// Of a program's op that writes in place, the result is what it writes to.
TEST(DecisionKey, HasNoNumberOfAnOpInPlace) {
  torch::Library library(torch::Library::FRAGMENT, "decision_key_test", std::nullopt, __FILE__,
                         __LINE__);
  library.def("step_(Tensor(a!) x, Tensor g, float rate) -> Tensor(a!)");
  library.impl("step_", torch::dispatch(c10::DispatchKey::CompositeExplicitAutograd,
                                        [](at::Tensor& x, const at::Tensor& g, double rate) {
                                          return x.add_(g, -rate);
                                        }));
  tessera::register_rule("decision_key_test::step_", "*, * -> *");
  const auto step = [](at::Tensor& x, const at::Tensor& g, double rate) {
    c10::Dispatcher::singleton()
        .findSchemaOrThrow("decision_key_test::step_", "")
        .typed<at::Tensor(at::Tensor&, const at::Tensor&, double)>()
        .call(x, g, rate);
  };
  run_ranks(1, [&](int) {
    at::Tensor full = whole_numbers({4, 3});
    const DeviceMesh mesh = init_device_mesh("tp=1");
    at::Tensor x = distribute_tensor(full, mesh, {Shard(0)});
    const at::Tensor g = distribute_tensor(full, mesh, {Shard(0)});
    const at::Tensor plain = full.clone();
    step(x, g, 0.5);
    step(full, plain, 0.5);
    const uint64_t before = misses();
    for (const double rate : {0.25, 0.125, 2.0}) {
      step(x, g, rate);
      step(full, plain, rate);
    }
    EXPECT_EQ(misses(), before);
    EXPECT_TRUE(at::equal(full_tensor(x), full));
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

/// A program that calls an op with ever new numbers that are all in the key.
TEST(DecisionCache, IsBoundedForEachOp) {
  clear_caches();
  run_ranks(1, [](int) {
    at::Tensor out = distribute_tensor(whole_numbers({4}), init_device_mesh("tp=1"), {Replicate()});
    uint64_t most = 0;
    for (int64_t n = 0; n < 9000; ++n) {
      at::arange_out(out, n, n + 4, 1);
      most = std::max(most, cache_stats().decisions);
    }
    EXPECT_EQ(out.sum().item<double>(), 4 * 8999 + 6);
    EXPECT_GT(most, 4000U);
    EXPECT_LT(most, 4200U);
  });
}

}  // namespace decision_key_test
}  // namespace tessera
