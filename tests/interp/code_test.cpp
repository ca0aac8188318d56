#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "tessera/interp/compile.h"
#include "tessera/interp/execute.h"
#include "tessera/interp/free_values.h"
#include "tessera/interp/symbolic_op.h"
#include "tests/support_pure/expect_error.h"

namespace tessera::interp {
namespace {

using c10::IValue;
using test::expect_error;

IValue compute(std::string_view target, std::vector<IValue> operands) {
  const auto found = find_symbolic(target);
  EXPECT_TRUE(found && found->operands == static_cast<int>(operands.size())) << target;
  return evaluate(found->op, operands);
}

int64_t ints(std::string_view target, int64_t a, int64_t b) {
  return compute(target, {a, b}).toInt();
}

TEST(SymbolicOp, ComputesAsPythonDoes) {
  EXPECT_EQ(ints("_operator.add", 3, 4), 7);
  EXPECT_EQ(ints("_operator.sub", 3, 4), -1);
  EXPECT_EQ(ints("_operator.mul", 3, 4), 12);
  EXPECT_EQ(ints("_operator.floordiv", -7, 2), -4);
  EXPECT_EQ(ints("_operator.floordiv", 7, -2), -4);
  EXPECT_EQ(ints("_operator.mod", -7, 2), 1);
  EXPECT_EQ(ints("_operator.mod", 7, -2), -1);
  EXPECT_EQ(ints("_operator.pow", -2, 3), -8);
  EXPECT_EQ(ints("_operator.pow", 0, 0), 1);
  EXPECT_EQ(ints("_operator.lshift", 3, 4), 48);
  EXPECT_EQ(ints("_operator.rshift", -5, 1), -3);
  EXPECT_EQ(ints("torch.sym_max", 3, 4), 4);
  EXPECT_EQ(compute("_operator.pow", {int64_t{2}, int64_t{-1}}).toDouble(), 0.5);
  EXPECT_EQ(compute("_operator.truediv", {int64_t{7}, int64_t{2}}).toDouble(), 3.5);
  EXPECT_EQ(compute("math.trunc", {-2.5}).toInt(), -2);
  EXPECT_EQ(compute("torch.sym_float", {int64_t{3}}).toDouble(), 3.0);
  EXPECT_EQ(compute("_operator.neg", {int64_t{3}}).toInt(), -3);
  EXPECT_EQ(compute("torch.sym_sqrt", {int64_t{9}}).toDouble(), 3.0);
  EXPECT_EQ(compute("torch.sym_ite", {false, int64_t{1}, int64_t{2}}).toInt(), 2);
  EXPECT_TRUE(compute("_operator.le", {int64_t{3}, 3.5}).toBool());
  EXPECT_FALSE(compute("torch.sym_not", {true}).toBool());
  EXPECT_TRUE(compute("_operator.and_", {true, true}).isBool());
  EXPECT_FALSE(find_symbolic("_operator.getitem"));
}

TEST(SymbolicOp, RefusesWhatHasNoValue) {
  expect_error<InvalidArgument>([] { ints("_operator.floordiv", 1, 0); }, {"zero"});
  expect_error<InvalidArgument>([] { ints("_operator.mod", 1, 0); }, {"zero"});
  expect_error<InvalidArgument>([] { ints("_operator.mul", int64_t{1} << 62, 4); }, {"64 bits"});
  expect_error<InvalidArgument>([] { ints("_operator.floordiv", INT64_MIN, -1); }, {"64 bits"});
  expect_error<InvalidArgument>([] { ints("_operator.pow", 10, 40); }, {"64 bits"});
  expect_error<InvalidArgument>([] { ints("_operator.lshift", 1, 64); }, {"64 bits"});
  expect_error<InvalidArgument>([] { compute("math.trunc", {1e30}); }, {"64 bits"});
  expect_error<InvalidArgument>([] { compute("_operator.neg", {"text"}); }, {"not a number"});
}

Instruction call(const char* op, std::vector<ValueIndex> args, ValueIndex result) {
  Instruction out;
  out.node = op;
  out.op = c10::Dispatcher::singleton().findSchemaOrThrow(op, "");
  for (const ValueIndex arg : args) {
    out.args.push_back({.kind = ArgSource::Kind::value, .value = arg});
  }
  out.results.push_back({.values = {result}});
  return out;
}

/// x -> y = relu(x) -> z = neg(y) -> w = matmul(y, y) -> out = sin(w); z is never read.
Code small_code() {
  Code code;
  code.values = 5;
  code.inputs = {0};
  code.instructions = {call("aten::relu", {0}, 1), call("aten::neg", {1}, 2),
                       call("aten::matmul", {1, 1}, 3), call("aten::sin", {3}, 4)};
  code.outputs.push_back({.kind = ArgSource::Kind::value, .value = 4});
  mark_last_uses(code);
  return code;
}

TEST(Code, ValuesAreFreedByTheirLastUse) {
  const Code code = small_code();
  EXPECT_FALSE(code.instructions[0].args[0].last_use);  // inputs stay
  EXPECT_EQ(code.instructions[1].results[0].values[0], kUnused);
  EXPECT_FALSE(code.instructions[1].args[0].last_use);                // read again
  EXPECT_EQ(code.instructions[2].frees, std::vector<ValueIndex>{1});  // read twice by one call
  EXPECT_TRUE(code.instructions[3].args[0].last_use);
}

TEST(Code, RunsAndReleasesItsInputs) {
  Executor executor(small_code());
  const at::Tensor x = at::randn({3, 3});
  executor.set_run_input(0, x);
  const auto out = executor.run("test");
  EXPECT_TRUE(at::equal(out[0].toTensor(), at::matmul(x.relu(), x.relu()).sin()));
  EXPECT_EQ(x.use_count(), 1U);
  EXPECT_EQ(out[0].toTensor().use_count(), 1U);
}

TEST(Code, ReleasesEverythingAfterAnError) {
  Executor executor(small_code());
  const at::Tensor x = at::randn({2, 3});
  executor.set_run_input(0, x);
  expect_error<InvalidArgument>([&] { executor.run("test"); }, {"test: aten::matmul"});
  EXPECT_EQ(x.use_count(), 1U);
}

}  // namespace
}  // namespace tessera::interp
