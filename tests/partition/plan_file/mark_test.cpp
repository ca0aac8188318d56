#include <gtest/gtest.h>

#include "tessera/partition/graph/module_paths.h"
#include "tessera/partition/plan_file/plan.h"
#include "tests/partition/programs.h"
#include "tests/support_pure/expect_error.h"

namespace tessera::partition {
namespace mark_test {

using namespace test;  // NOLINT
using tessera::test::expect_error;

TEST(Plan, IsReadAndWritten) {
  const std::string json = R"({
  "axis": "tp",
  "modules": {
    "h.*.c_attn": "colwise",
    "wte": "vocabulary"
  },
  "weights": {
    "h.0.c_fc.weight": "S1"
  },
  "values": {
    "add_1": "S1"
  },
  "inputs": {
    "tokens": "S0"
  },
  "outputs": {
    "output": "S-1"
  },
  "rest": "auto"
}
)";
  EXPECT_EQ(Plan::parse(json, "plan.json").to_json(), json);
  EXPECT_EQ(Plan::parse("{}", "plan.json").to_json(), "{}\n");
}

TEST(Plan, ErrorsNameThePlace) {
  const auto bad = [](const std::string& json, std::initializer_list<std::string_view> parts) {
    expect_error<InvalidArgument>([&] { Plan::parse(json, "plan.json"); }, parts);
  };
  bad(R"({"modules": {"a": "diagonal"}})", {"plan.json", "modules.a", "diagonal", "colwise"});
  bad(R"({"weights": {"a": "Q3"}})", {"plan.json", "weights.a", "Q3"});
  bad(R"({"weight": {}})", {"plan.json", "weight", "not part of a plan"});
  bad(R"({"rest": "some"})", {"plan.json", "rest", "some"});
  bad(R"([1])", {"plan.json"});
  bad(R"({"axis": )", {"plan.json"});
}

const Pin* pin_of(const ProgramView& view, const Pins& pins, const std::string& weight) {
  for (const auto& input : view.program().signature.inputs) {
    if (input.target == weight)
      return pins.find(view.tied(input.arg->as<program::ValueId>()), view.mesh().ndim() - 1);
  }
  return nullptr;
}

Pins mark_with(ProgramView& view, const std::string& json) {
  return mark(view, Plan::parse(json, "plan.json"));
}

class MarkEveryForm : public ::testing::TestWithParam<std::string> {};
INSTANTIATE_TEST_SUITE_P(Mark, MarkEveryForm, ::testing::ValuesIn(forms()),
                         [](const auto& info) { return info.param; });

TEST_P(MarkEveryForm, StylesFollowTheUseOfTheWeight) {
  const auto p = load("gpt_" + GetParam());
  ProgramView view(p, DeviceMesh::parse("dp=2,tp=2"));
  const Pins pins = mark_with(view, R"({"modules": {
    "h.*.c_attn": "colwise", "h.*.attn_proj": "rowwise", "wte": "vocabulary"}})");
  EXPECT_EQ(pin_of(view, pins, "h.0.c_attn.weight")->placement, Shard(1));  // transposed
  EXPECT_EQ(pin_of(view, pins, "h.1.c_attn.bias")->placement, Shard(0));
  EXPECT_EQ(pin_of(view, pins, "h.1.attn_proj.weight")->placement, Shard(0));
  EXPECT_EQ(pin_of(view, pins, "h.1.attn_proj.bias")->placement, Replicate());
  EXPECT_EQ(pin_of(view, pins, "lm_head.weight")->placement, Shard(0));  // tied
  EXPECT_EQ(pin_of(view, pins, "h.0.c_fc.weight"), nullptr);

  const auto bert = load("bert_" + GetParam());
  ProgramView other(bert, DeviceMesh::parse("tp=2"));
  const Pins linear = mark_with(other, R"({"modules": {
    "layer.*.query": "colwise", "layer.*.output": "rowwise", "words": "colwise"}})");
  EXPECT_EQ(pin_of(other, linear, "layer.0.query.weight")->placement, Shard(0));
  EXPECT_EQ(pin_of(other, linear, "layer.0.output.weight")->placement, Shard(1));
  EXPECT_EQ(pin_of(other, linear, "words.weight")->placement, Shard(1));
}

TEST_P(MarkEveryForm, ASequenceIsShardedWhereTheModuleIsLeft) {
  const auto p = load("gpt_" + GetParam());
  ProgramView view(p, DeviceMesh::parse("tp=2"));
  const auto leaving = values_leaving(view, "h.0.ln_1");
  ASSERT_EQ(leaving.size(), 1U);
  const Pins pins = mark_with(view, R"({"modules": {"h.*.ln_1": "sequence"}})");
  EXPECT_EQ(pins.find(leaving[0], 0)->placement, Shard(1));
  const bool dynamic = GetParam().ends_with("dynamic");
  EXPECT_EQ(view.assumed().size(), dynamic ? 1U : 0U);  // the length is a multiple of 2
}

TEST(Mark, NamesThatNothingFitsAreErrors) {
  const auto p = load("gpt_raw");
  const auto bad = [&](const std::string& json, std::initializer_list<std::string_view> parts) {
    ProgramView view(p, DeviceMesh::parse("dp=2,tp=2"));
    expect_error<InvalidArgument>([&] { mark_with(view, json); }, parts);
  };
  bad(R"({"modules": {"h.*.c_atn": "colwise"}})", {"module h.*.c_atn", "h.0.c_attn"});
  bad(R"({"weights": {"h.0.c_fc.wait": "R,S0"}})", {"weight h.0.c_fc.wait", "h.0.c_fc.weight"});
  bad(R"({"inputs": {"token": "R,S0"}})", {"input token", "tokens"});
  bad(R"({"outputs": {"out": "R,S0"}})", {"output out", "output"});
  bad(R"({"values": {"ad_1": "R,S0"}})", {"value ad_1", "add_1"});
  bad(R"({"weights": {"h.0.c_fc.weight": "S0"}})", {"S0", "dp=2,tp=2"});
  bad(R"({"weights": {"h.0.c_fc.weight": "R,S2"}})", {"dim 2", "24x96"});
  bad(R"x({"weights": {"h.0.c_fc.weight": "R,P(sum)"}})x", {"partial"});
  bad(R"({"axis": "pp"})", {"pp"});
  bad(R"({"modules": {"h.0.dropout": "colwise"}})", {"h.0.dropout", "no weights"});
  bad(R"({"modules": {"wte": "colwise", "lm_head": "colwise"}})", {"another name"});
}

TEST(Mark, SymbolsMustFitTheExportedSizes) {
  const auto p = load("gpt_raw_dynamic");  // 2 x 8 tokens
  ProgramView view(p, DeviceMesh::parse("tp=4"));
  expect_error<InvalidArgument>([&] { mark_with(view, R"({"inputs": {"tokens": "S0"}})"); },
                                {"tokens", "= 2", "not a multiple"});
  mark_with(view, R"({"inputs": {"tokens": "S1"}})");
  EXPECT_EQ(view.assumed().begin()->second, 4);
}

}  // namespace mark_test
}  // namespace tessera::partition
