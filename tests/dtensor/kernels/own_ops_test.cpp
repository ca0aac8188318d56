// Ops of a user's library with sharded tensors: without a word, with a rule, with a kernel; rules
// before and after the op is defined.
#include "tessera/dtensor/kernels/own_ops.h"

#include <gtest/gtest.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>

#include "tessera/base/errors.h"
#include "tessera/base/shape.h"
#include "tessera/comm/threads.h"
#include "tessera/dtensor/dtensor.h"
#include "tessera/dtensor/policy.h"
#include "tessera/observe/expect.h"
#include "tessera/observe/recorder.h"
#include "tests/support/parts.h"
#include "tests/support/ranks.h"

namespace tessera {
namespace own_ops_test {

using comm::init_device_mesh;
using test::run_ranks;
using test::whole_numbers;

at::Tensor scale_rows_cpu(const at::Tensor& x, const at::Tensor& by) {
  EXPECT_TRUE(x.is_contiguous() && x.const_data_ptr() != nullptr) << "real memory arrives here";
  return x * by.unsqueeze(1);
}

at::Tensor call(const char* name, const at::Tensor& x, const at::Tensor& by) {
  const auto op = c10::Dispatcher::singleton().findSchemaOrThrow(name, "");
  return op.typed<at::Tensor(const at::Tensor&, const at::Tensor&)>().call(x, by);
}

/// The same, column by column in memory.
at::Tensor scale_rows_in_columns(const at::Tensor& x, const at::Tensor& by) {
  return (x.t() * by).contiguous().t();
}

/// A library with one op, `name`, that a CPU kernel computes.
struct Library {
  explicit Library(const std::string& op, decltype(scale_rows_cpu)* kernel = scale_rows_cpu)
      : definition(torch::Library::FRAGMENT, "own_ops_test", std::nullopt, __FILE__, __LINE__),
        cpu(torch::Library::IMPL, "own_ops_test", c10::DispatchKey::CPU, __FILE__, __LINE__) {
    definition.def((op + "(Tensor x, Tensor by) -> Tensor").c_str());
    cpu.impl(op.c_str(), kernel);
  }
  torch::Library definition;
  torch::Library cpu;
};

/// Whether the op, on rows over two ranks, is right, and what it communicates.
std::string comm_of(const char* name, const char* expected) {
  std::string difference;
  run_ranks(2, [&](int rank) {
    const DeviceMesh mesh = init_device_mesh("tp=2");
    const at::Tensor x = distribute_tensor(whole_numbers({5, 3}, 1), mesh, {Shard(0)});
    const at::Tensor by = distribute_tensor(whole_numbers({5}, 2), mesh, {Shard(0)});
    comm::Recorder recorder(*comm::current_world());
    const at::Tensor y = call(name, x, by);
    const std::string here = comm::expect_comm(recorder, expected);
    if (rank == 0) difference = here;
    EXPECT_TRUE(
        at::equal(full_tensor(y), scale_rows_cpu(whole_numbers({5, 3}, 1), whole_numbers({5}, 2))));
  });
  return difference;
}

TEST(OwnOps, AnUnknownOpRunsOnReplicatedInputs) {
  const Library library("unknown");
  EXPECT_EQ(comm_of("own_ops_test::unknown", "2 all_gather"), "");
  run_ranks(2, [](int) {
    const DeviceMesh mesh = init_device_mesh("tp=2");
    const at::Tensor x = distribute_tensor(whole_numbers({4, 3}), mesh, {Shard(0)});
    const StrictRules strict;
    EXPECT_THROW(call("own_ops_test::unknown", x, x.sum(1)), NotSupported);
  });
}

/// N is known from the local result alone. Which views exist depends on the strides.
TEST(OwnOps, AResultOfOpenSizeHasTheStridesOfItsKernel) {
  const Library library("in_columns", scale_rows_in_columns);
  register_rule("own_ops_test::in_columns", "mK, m -> mN");
  run_ranks(2, [](int) {
    const DeviceMesh mesh = init_device_mesh("tp=2");
    for (const int64_t rows : {4, 5, 6, 4}) {
      const at::Tensor x = whole_numbers({rows, 3}, 1), by = whole_numbers({rows}, 2);
      const at::Tensor y = call("own_ops_test::in_columns", distribute_tensor(x, mesh, {Shard(0)}),
                                distribute_tensor(by, mesh, {Shard(0)}));
      const at::Tensor expected = scale_rows_in_columns(x, by);
      EXPECT_TRUE(at::equal(full_tensor(y), expected)) << rows;
      EXPECT_TRUE(at::equal(full_tensor(y.t().reshape({-1})), expected.t().reshape({-1}))) << rows;
      if (rows % 2 == 0) {
        EXPECT_EQ(y.strides(), expected.strides()) << rows;
      }
      EXPECT_EQ(to_local(y).is_contiguous(), y.is_contiguous()) << rows;
    }
  });
}

TEST(OwnOps, ARuleLetsItRunOnShards) {
  const Library library("ruled");
  EXPECT_EQ(comm_of("own_ops_test::ruled", "2 all_gather"), "");
  register_rule("own_ops_test::ruled", "mn, m -> mn ; linear 0 ; linear 1");
  EXPECT_EQ(comm_of("own_ops_test::ruled", "nothing"), "") << "decisions made before are dropped";
}

/// Rows, but only of an even number of them: no line of notation says that.
TEST(OwnOps, ARuleMayBeAFunction) {
  const Library library("by_function");
  rules::Rule rule;
  rule.op = "own_ops_test::by_function";
  rule.text = "code: an even number of rows";
  rule.rows = [](const rules::OpCall& call, int) {
    std::vector<rules::Row> out;
    if (std::get<Sharding>(call.args[0].value).shape()[0] % 2 == 0)
      out.push_back({{Shard(0), Shard(0)}, {Shard(0)}});
    return out;
  };
  rule.infer = [](const rules::OpCall& call) {
    const auto& x = std::get<Sharding>(call.args[0].value);
    const std::vector<int64_t> shape(x.shape().begin(), x.shape().end());
    return std::vector<rules::ResultMeta>{{shape, contiguous_stride(shape), x.dtype()}};
  };
  tessera::register_rule(rule);
  EXPECT_EQ(comm_of("own_ops_test::by_function", "2 all_gather"), "") << "five rows";
  run_ranks(2, [](int) {
    const DeviceMesh mesh = init_device_mesh("tp=2");
    const at::Tensor x = distribute_tensor(whole_numbers({6, 3}, 1), mesh, {Shard(0)});
    const at::Tensor by = distribute_tensor(whole_numbers({6}, 2), mesh, {Shard(0)});
    const CommPolicy quiet(ImplicitComm::forbid);
    const at::Tensor y = call("own_ops_test::by_function", x, by);
    EXPECT_EQ(sharding(y).placements_text(), "S0");
    EXPECT_TRUE(
        at::equal(full_tensor(y), scale_rows_cpu(whole_numbers({6, 3}, 1), whole_numbers({6}, 2))));
  });
  rule.op = "by_function";
  EXPECT_THROW(tessera::register_rule(rule), InvalidArgument);
}

TEST(OwnOps, TheRuleMayComeBeforeTheOp) {
  register_rule("own_ops_test::early", "mn, m -> mn ; linear 0 ; linear 1");
  const Library library("early");
  EXPECT_EQ(comm_of("own_ops_test::early", "nothing"), "");
}

TEST(OwnOps, ACompositeKernelGivesWayToARule) {
  const auto define = [](torch::Library& library, const char* name) {
    library.def(torch::schema((std::string(name) + "(Tensor x, Tensor by) -> Tensor").c_str()),
                torch::dispatch(
                    c10::DispatchKey::CompositeExplicitAutograd,
                    [](const at::Tensor& x, const at::Tensor& by) { return x * by.unsqueeze(1); }));
  };
  torch::Library library(torch::Library::FRAGMENT, "own_ops_test", std::nullopt, __FILE__,
                         __LINE__);
  define(library, "composite");
  EXPECT_EQ(comm_of("own_ops_test::composite", "nothing"), "") << "through the ops it calls";
  static int calls = 0;  // outlives the registration
  register_kernel(
      "own_ops_test_counts",
      [](const KernelCall& at) {
        ++calls;
        at.give(scale_rows_cpu(at.tensor("x"), at.tensor("by")));
      },
      KernelComm::none);
  register_rule("own_ops_test::composite", "mn, m -> mn ; kernel own_ops_test_counts m");
  run_ranks(1, [](int) {
    const DeviceMesh mesh = init_device_mesh("tp=1");
    call("own_ops_test::composite", distribute_tensor(whole_numbers({5, 3}), mesh, {Shard(0)}),
         distribute_tensor(whole_numbers({5}), mesh, {Shard(0)}));
  });
  EXPECT_EQ(calls, 1);
  register_rule("own_ops_test::late_composite", "mn, m -> mn ; kernel own_ops_test_counts m");
  define(library, "late_composite");
  run_ranks(1, [](int) {
    const DeviceMesh mesh = init_device_mesh("tp=1");
    call("own_ops_test::late_composite", distribute_tensor(whole_numbers({5, 3}), mesh, {Shard(0)}),
         distribute_tensor(whole_numbers({5}), mesh, {Shard(0)}));
  });
  EXPECT_EQ(calls, 2);
}

/// docs/own_ops.md shows this. The mean of each column of rows that are spread over ranks.
void column_means(const KernelCall& at) {
  const Sharding& rows = at.operands[0];
  const at::Tensor part = at.tensor("x");
  const at::Tensor sums = part.sum(0) / static_cast<double>(rows.shape()[0]);
  at.give(to_local(redistribute(from_local(sums, rows.mesh(), {Partial()}), {Replicate()})));
}

TEST(OwnOps, AKernelRunsTheRowsThatNameIt) {
  torch::Library library(torch::Library::FRAGMENT, "own_ops_test", std::nullopt, __FILE__,
                         __LINE__);
  library.def("column_means(Tensor x) -> Tensor");
  library.impl("column_means", torch::dispatch(c10::DispatchKey::CPU,
                                               [](const at::Tensor& x) { return x.mean(0); }));
  register_rule("own_ops_test::column_means", "mn -> n!m ; kernel own_ops_test_means m");
  const at::Tensor full = whole_numbers({5, 4}, 1);
  const auto run = [&](Placement placement, const char* result, const char* sent) {
    run_ranks(2, [&](int) {
      const DeviceMesh mesh = init_device_mesh("tp=2");
      const at::Tensor x = distribute_tensor(full, mesh, {placement});
      comm::Recorder recorder(*comm::current_world());
      const at::Tensor y = c10::Dispatcher::singleton()
                               .findSchemaOrThrow("own_ops_test::column_means", "")
                               .typed<at::Tensor(const at::Tensor&)>()
                               .call(x);
      EXPECT_EQ(comm::expect_comm(recorder, sent), "");
      EXPECT_EQ(sharding(y).placements_text(), result);
      EXPECT_TRUE(at::allclose(full_tensor(y), full.mean(0)));
    });
  };
  register_kernel("own_ops_test_means", column_means);
  run(Shard(0), "R", "1 all_reduce on tp, 1 implicit");
  run(Shard(1), "S0", "nothing");
  run_ranks(2, [&](int) {
    const at::Tensor x = distribute_tensor(full, init_device_mesh("tp=2"), {Shard(0)});
    const CommPolicy explicit_only(ImplicitComm::forbid);
    EXPECT_THROW(c10::Dispatcher::singleton()
                     .findSchemaOrThrow("own_ops_test::column_means", "")
                     .typed<at::Tensor(const at::Tensor&)>()
                     .call(x),
                 NotSupported)
        << "it combines results";
  });
}

/// The derivative that a library brings under the Autograd key holds for sharded tensors too.
struct ScaleRows : torch::autograd::Function<ScaleRows> {
  static at::Tensor forward(torch::autograd::AutogradContext* ctx, const at::Tensor& x,
                            const at::Tensor& by) {
    ctx->save_for_backward({x, by});
    const at::AutoDispatchBelowADInplaceOrView below;
    return call("own_ops_test::trained", x, by);
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* ctx,
                                                 torch::autograd::variable_list grads) {
    const auto saved = ctx->get_saved_variables();
    return {call("own_ops_test::trained", grads[0], saved[1]), (grads[0] * saved[0]).sum(1)};
  }
};

TEST(OwnOps, DerivativesAreTheLibrarysOwn) {
  Library library("trained");
  torch::Library autograd(torch::Library::IMPL, "own_ops_test", c10::DispatchKey::Autograd,
                          __FILE__, __LINE__);
  autograd.impl("trained",
                [](const at::Tensor& x, const at::Tensor& by) { return ScaleRows::apply(x, by); });
  register_rule("own_ops_test::trained", "mn, m -> mn ; linear 0 ; linear 1");
  run_ranks(2, [](int) {
    const DeviceMesh mesh = init_device_mesh("tp=2");
    const at::Tensor x = whole_numbers({5, 3}, 1).requires_grad_();
    const at::Tensor by = whole_numbers({5}, 2).requires_grad_();
    call("own_ops_test::trained", x, by).pow(2).sum().backward();
    const at::Tensor dx = distribute_tensor(x.detach(), mesh, {Shard(0)}).requires_grad_();
    const at::Tensor dby = distribute_tensor(by.detach(), mesh, {Shard(0)}).requires_grad_();
    call("own_ops_test::trained", dx, dby).pow(2).sum().backward();
    EXPECT_TRUE(at::equal(full_tensor(dx.grad()), x.grad()));
    EXPECT_TRUE(at::equal(full_tensor(dby.grad()), by.grad()));
  });
}

TEST(OwnOps, NonsenseIsRefused) {
  EXPECT_THROW(register_rule("scale_rows", "mn, m -> mn"), InvalidArgument);
  EXPECT_THROW(register_rule("own_ops_test::nonsense", "mn, m ->"), InvalidArgument);
  EXPECT_THROW(register_kernel("own_ops_test_nothing", {}), InvalidArgument);
}

/// A kernel for rows and one for columns: a call runs one of them, never the last that was named.
TEST(OwnOps, TwoKernelsAreNotMixedInOneCall) {
  const Library library("two_kernels");
  register_rule("own_ops_test::two_kernels",
                "mn, m -> mn ; kernel own_ops_rows m ; kernel own_ops_columns n");
  const auto kernel_for = [](const char* expected) {
    return [expected](const KernelCall& call) {
      EXPECT_EQ(call.operands[0].placements_text(), expected);
      EXPECT_EQ(call.results[0].placements_text(), expected);
      call.give(call.tensor("x") * call.tensor("by").unsqueeze(1));
    };
  };
  register_kernel("own_ops_rows", kernel_for("S0,R"), KernelComm::none);
  register_kernel("own_ops_columns", kernel_for("R,S1"), KernelComm::none);
  run_ranks(4, [](int) {
    const DeviceMesh mesh = init_device_mesh("a=2,b=2");
    const at::Tensor full = whole_numbers({6, 4}, 1), scale = whole_numbers({6}, 2);
    for (const auto& [x_at, by_at] :
         {std::pair{"S0,S1", "S0,R"}, std::pair{"S0,R", "S0,R"}, std::pair{"R,S1", "R,R"}}) {
      const at::Tensor x = distribute_tensor(full, mesh, parse_placements(x_at));
      const at::Tensor by = distribute_tensor(scale, mesh, parse_placements(by_at));
      const at::Tensor y = call("own_ops_test::two_kernels", x, by);
      EXPECT_TRUE(at::equal(full_tensor(y), full * scale.unsqueeze(1))) << x_at;
    }
  });
}

}  // namespace own_ops_test
}  // namespace tessera
