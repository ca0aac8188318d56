#include "tessera/rules/tables.h"
#include "tests/rules_proof/prove_all.h"

namespace tessera::test {
namespace {

constexpr const char* kLines[] = {
    "aten::add.Tensor 5x3 5x3 alpha=2",
    "aten::add.Tensor 5x3 3",
    "aten::add.Tensor 5x1 1x3",
    "aten::add.Tensor 5x3:i64 5x3:i64",
    "aten::add.Tensor 5x3:bool 5x3:bool",
    "aten::add.Tensor 5x3:c128 5x3:c128",
    "aten::add.Tensor 5x3:i64 scalar",
    "aten::add_.Tensor 5x3 3",
    "aten::add.out 5x3 3 out=5x3",
    "aten::sub.Tensor 5x3 5x3 alpha=-1",
    "aten::mul.Tensor 1x3 5x1",
    "aten::mul_.Tensor 5x3 scalar",
    "aten::mul.Tensor 5x3:bool 5x3",
    "aten::div.Tensor 5x3:i64 5x3:pos",
    "aten::div.Tensor_mode 5x3 5x3 rounding_mode=floor",
    "aten::div.Tensor_mode 5x3 5x3 rounding_mode=-",
    "aten::where.self 5x3:bool 5x3 3",
    "aten::where.self 5x3:bool 5x3:i64 3:i64",
    "aten::masked_fill.Scalar 5x3 5x3:bool value=0",
    "aten::masked_fill.Scalar 5x3 3:bool value=2.5",
    "aten::masked_fill.Tensor 5x3 3:bool scalar",
    "aten::masked_fill_.Scalar 5x3 3:bool value=2.5",
    "aten::lerp.Tensor 5x3 5x3 1x3",
    "aten::addcmul 5x3 5x3 3 value=2",
    "aten::addcdiv 5x3 5x3 3:pos value=2",
    "aten::clamp 5x3 min=-0.5 max=0.5",
    "aten::clamp.Tensor 5x3 5x1 3",
    "aten::clamp.Tensor 5x3 - 3",
    "aten::maximum 5x3 1x3",
    "aten::minimum 5x3 5x1",
    "aten::bitwise_and.Tensor 5x3:i64 3:i64",
    "aten::bitwise_or.Tensor 5x3:bool 3:bool",
    "aten::neg 5x3:c128",
    "aten::tanh_ 4x6",
    "aten::tanh.out 4x6 out=4x6",
    "aten::_to_copy 5x3 dtype=6",
    "aten::_to_copy 5x3 dtype=4",
    "aten::_to_copy 5x3:i64 dtype=7",
    "aten::_to_copy 5x3:bool dtype=7",
    "aten::_to_copy 5x3 dtype=10",
    "aten::_to_copy 5x3 dtype=11",
    "aten::copy_ 5x3 3",
    "aten::copy_ 5x3:i64 5x3",
    "aten::copy_ 5x3:i32 5x3:i64",
    "aten::clone 5x3:i64",
    "aten::clone 5x3",
    "aten::zeros_like 5x3",
    "aten::ones_like 5x3",
    "aten::full_like 5x3 fill_value=2",
    "aten::zero_ 5x3",
    "aten::fill_.Scalar 5x3 value=2",
    "aten::fill_.Tensor 5x3 scalar",
    "aten::glu 5x4 dim=-1",
    "aten::glu_backward 5x2 5x4 dim=1",
    "aten::native_dropout_backward 5x3 5x3:bool scale=2.0",
    "aten::_prelu_kernel 5x3 1x3",
    "aten::_prelu_kernel_backward 5x3 5x3 5x3",
    "aten::view_as_real 5x3:c128",
    "aten::view_as_complex 5x3x2",
    "aten::frexp.Tensor 5x3",
    "aten::polygamma n=1 5x3:pos",
    "aten::complex 5x3 5x3",
};

/// A sample for an op of the pointwise table, from its schema; empty if none runs.
std::string guess(const std::string& op, bool broadcast) {
  c10::OperatorHandle handle = find_op(op);
  for (const char* type : {":pos", ":i64<5", ":bool", ":c128"}) {
    std::string line = op;
    int tensors = 0;
    for (const auto& a : handle.schema().arguments()) {
      const auto kind = a.type()->kind();
      if (is_tensor_type(a.type())) {
        line += std::string(broadcast && tensors++ == 1 ? " 3" : " 5x3") + type;
      } else if (!a.default_value() && kind == c10::TypeKind::NumberType) {
        line += " " + a.name() + "=2";
      } else if (!a.default_value() && kind == c10::TypeKind::IntType) {
        line += " " + a.name() + "=2";
      } else if (!a.default_value() && kind == c10::TypeKind::BoolType) {
        line += " " + a.name() + "=true";
      } else if (!a.default_value() && kind == c10::TypeKind::FloatType) {
        line += " " + a.name() + "=0.5";
      }
    }
    try {
      auto sample = parse_sample(line);
      sample.op.callBoxed(sample.stack);
      return line;
    } catch (const std::exception&) {
    }
  }
  return {};
}

bool is_random(const std::string& op) {
  for (const char* name :
       {"rand", "bernoulli", "poisson", "normal", "uniform", "exponential", "geometric", "cauchy",
        "binomial", "_standard_gamma", "dropout", "rrelu", "empty", "random"}) {
    if (op.find(name) != std::string::npos) return true;
  }
  return false;
}

TEST(RulesOfPointwiseOps, EveryRowIsRight) {
  const Tally tally = prove_lines(kLines);
  EXPECT_GT(tally.rows, 900);
}

TEST(RulesOfPointwiseOps, EveryOpOfTheTableIsRight) {
  std::vector<std::string> lines, without;
  for (const auto& entry : rules::pointwise_table()) {
    for (const auto& name : split_text(std::string(entry.ops), ' ')) {
      const std::string op = "aten::" + name;
      const auto known = c10::Dispatcher::singleton().findSchema(
          {op.substr(0, op.find('.')),
           op.find('.') == std::string::npos ? "" : op.substr(op.find('.') + 1)});
      if (!known) {
        ADD_FAILURE() << op << " does not exist";
        continue;
      }
      if (is_random(op)) continue;
      for (const bool broadcast : {false, true}) {
        const std::string line = guess(op, broadcast);
        if (!line.empty()) lines.push_back(line);
        if (line.empty() && !broadcast) without.push_back(op);
      }
    }
  }
  std::vector<const char*> texts;
  for (const auto& line : lines) texts.push_back(line.c_str());
  const Tally tally = prove_lines(texts);
  EXPECT_GT(tally.rows, 5'000);
  std::string missing;
  for (const auto& op : without) missing += " " + op;
  std::printf("without a sample:%s\n", missing.c_str());
  EXPECT_LT(without.size(), 10U) << missing;
}

}  // namespace
}  // namespace tessera::test
