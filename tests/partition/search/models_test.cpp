#include <gtest/gtest.h>

#include <algorithm>

#include "tessera/partition/search/propagate.h"
#include "tests/partition/programs.h"
#include "tests/support_pure/expect_error.h"

namespace tessera::partition {
namespace models_test {

using namespace test;  // NOLINT
using plan::Move;
using tessera::test::expect_error;

Assignment run_model(const program::ExportedProgram& p, const std::string& mesh,
                     const std::string& plan) {
  return propagate(p, DeviceMesh::parse(mesh), Plan::parse(plan, "plan"));
}

/// What every assignment must be: each operand at hand in the form that its node needs, no partial
/// value where the program ends, no weight moved by messages.
void expect_sound(const program::ExportedProgram& p, const Assignment& a) {
  const auto at_hand = [&](program::ValueId id, const Sharding& s) {
    return a.of(id) == s || std::ranges::any_of(a.redistributions, [&](const Redistribution& m) {
             return m.value == id && m.to == s;
           });
  };
  for (const auto& node : a.nodes) {
    for (const auto& operand : node.operands) {
      if (operand.value) {
        EXPECT_TRUE(at_hand(*operand.value, operand.needed)) << node.row;
      }
    }
    for (const auto id : node.results) EXPECT_TRUE(a.of(id).defined());
  }
  for (size_t i = 0; i < a.outputs.size(); ++i) {
    if (!a.outputs[i].defined()) continue;
    EXPECT_FALSE(a.outputs[i].has_partial());
    EXPECT_TRUE(at_hand(p.graph.outputs[i].as<program::ValueId>(), a.outputs[i]));
  }
  for (const auto& input : p.signature.inputs) {
    if (input.kind != program::InputKind::parameter) continue;
    for (const auto& m : a.redistributions) {
      if (m.value == input.arg->as<program::ValueId>()) {
        EXPECT_EQ(m.bytes, 0) << input.target;
      }
    }
  }
  EXPECT_LE(a.totals.lower_bound, a.totals.seconds());
}

struct Model {
  std::string name, plan;
  int collectives;
  std::vector<int> ranks;
  friend void PrintTo(const Model& model, std::ostream* out) { *out << model.name; }
};

/// Megatron's plans: two pairs a block, each with one all_reduce. All experts of a list share one.
const std::vector<Model> kModels = {
    {"gpt", R"({"modules": {"h.*.c_*": "colwise", "h.*.*_proj": "rowwise"}})", 4, {2, 3, 4}},
    {"llama",
     R"({"modules": {"**.q_proj": "colwise", "**.k_proj": "colwise", "**.v_proj": "colwise",
         "**.gate_proj": "colwise", "**.up_proj": "colwise", "**.o_proj": "rowwise",
         "**.down_proj": "rowwise"}})",
     4,
     {2, 3}},
    {"bert",
     R"({"modules": {"layer.*.query": "colwise", "layer.*.key": "colwise", "layer.*.value":
         "colwise", "layer.*.output": "rowwise", "layer.*.intermediate": "colwise",
         "layer.*.dense": "rowwise"}})",
     4,
     {2, 3, 4}},
    {"vit",
     R"({"modules": {"blocks.*.qkv": "colwise", "blocks.*.proj": "rowwise", "blocks.*.fc1":
         "colwise", "blocks.*.fc2": "rowwise"}})",
     4,
     {2, 3, 4}},
    {"moe",
     R"({"modules": {"first.experts.*.gate_proj": "colwise", "first.experts.*.up_proj": "colwise",
         "first.experts.*.down_proj": "rowwise"},
         "weights": {"second.up": "S0", "second.down": "S0"}})",
     2,
     {2, 3, 4}},
};

class EveryModel : public ::testing::TestWithParam<std::tuple<Model, std::string>> {
 protected:
  const Model& model() const { return std::get<0>(GetParam()); }
  program::ExportedProgram program() const {
    return load(model().name + "_" + std::get<1>(GetParam()));
  }
};
INSTANTIATE_TEST_SUITE_P(Models, EveryModel,
                         ::testing::Combine(::testing::ValuesIn(kModels),
                                            ::testing::ValuesIn(forms())),
                         [](const auto& info) {
                           return std::get<0>(info.param).name + "_" + std::get<1>(info.param);
                         });

TEST_P(EveryModel, TakesAsFewCollectivesAsTheTheorySays) {
  const auto p = program();
  for (const int ranks : model().ranks) {
    const Assignment a = run_model(p, join_text("tp=", ranks), model().plan);
    expect_sound(p, a);
    EXPECT_EQ(a.totals.collectives, model().collectives) << ranks << "\n" << text(p, a);
    EXPECT_EQ(count(a, Move::all_reduce) + count(a, Move::all_gather), model().collectives);
  }
}

TEST_P(EveryModel, DataParallelTakesNone) {
  const auto p = program();
  std::string plan = R"({"inputs": {"*": "S0"}, "outputs": {"*": "S0"}})";
  const Assignment a = run_model(p, "dp=2", plan);
  expect_sound(p, a);
  EXPECT_EQ(a.totals.collectives, 0) << text(p, a);
}

TEST_P(EveryModel, DataAndTensorParallelAreIndependent) {
  const auto p = program();
  std::string plan = model().plan;
  const auto weights = plan.find("\"S0\"");
  for (size_t at = weights; at != std::string::npos; at = plan.find("\"S0\"", at))
    plan.replace(at, 4, "\"R,S0\"");
  plan.insert(1, R"("inputs": {"*": "S0,R"}, "outputs": {"*": "S0,R"}, )");
  const Assignment a = run_model(p, "dp=2,tp=2", plan);
  expect_sound(p, a);
  EXPECT_EQ(a.totals.collectives, model().collectives) << text(p, a);
  EXPECT_EQ(a.divisible.size(), std::get<1>(GetParam()).ends_with("dynamic") ? 1U : 0U);
}

// 6 key heads for 4 ranks: keys and values come together again before attention.
TEST(Models, UnevenHeadsAreHandled) {
  for (const auto& form : forms()) {
    const auto p = load("llama_" + form);
    const Assignment a = run_model(p, "tp=4", kModels[1].plan);
    expect_sound(p, a);
    EXPECT_GT(a.totals.collectives, 4);
    EXPECT_EQ(weight(p, a, "layers.0.self_attn.k_proj.weight"), "S0");
  }
}

TEST(Models, AVocabularyIsShardedInTheLookUpAndInTheHead) {
  for (const auto& form : forms()) {
    const auto p = load("gpt_" + form);
    const Assignment a = run_model(p, "tp=3", R"({"modules": {"wte": "vocabulary"}})");
    expect_sound(p, a);
    EXPECT_EQ(count(a, Move::all_reduce), 1) << text(p, a);  // of what was looked up
    EXPECT_EQ(count(a, Move::all_gather), 1);                // of the logits
    EXPECT_EQ(a.totals.collectives, 2);
    EXPECT_EQ(a.nodes[form.ends_with("dynamic") ? 2 : 0].kernel, "mask") << text(p, a);
    EXPECT_EQ(weight(p, a, "wte.weight"), "S0");
    EXPECT_EQ(weight(p, a, "lm_head.weight"), "S0");
  }
}

TEST(Models, SequenceParallelReplacesEachAllReduceByAPair) {
  for (const auto& form : forms()) {
    const auto p = load("gpt_" + form);
    const Assignment a = run_model(p, "tp=2", R"({"modules": {
      "h.*.c_*": "colwise", "h.*.*_proj": "rowwise", "h.*.ln_*": "sequence",
      "ln_f": "sequence"}})");
    expect_sound(p, a);
    EXPECT_EQ(count(a, Move::reduce_scatter), 4) << text(p, a);
    EXPECT_EQ(count(a, Move::all_gather), 5);  // the last before the head
    EXPECT_EQ(count(a, Move::all_reduce), 0);
  }
}

TEST(Models, OutputsComeAsAsked) {
  const auto p = load("gpt_raw");
  const Assignment a = run_model(
      p, "tp=2", R"({"modules": {"lm_head": "vocabulary"}, "outputs": {"output": "S-1"}})");
  EXPECT_EQ(a.outputs[0].placements_text(), "S2");
  EXPECT_EQ(count(a, Move::all_gather), 0);
}

TEST(Models, APinnedValueIsReadSoByAll) {
  const auto p = load("mlp_raw");
  const Assignment a = run_model(p, "tp=2", R"({"modules": {"up": "colwise", "down": "rowwise"},
                                          "values": {"gelu": "R"}})");
  EXPECT_EQ(count(a, Move::all_gather), 1) << text(p, a);
  EXPECT_TRUE(a.of(*p.graph.find_value("gelu")).is_replicated());
}

TEST(Models, RefusesWhatNoRowAllows) {
  const auto p = load("gpt_raw");
  expect_error<InvalidArgument>(
      [&] { run_model(p, "tp=2", R"({"weights": {"h.0.ln_1.weight": "S0"}})"); },
      {"p_h_0_ln_1_weight", "layer_norm", "cannot use"});
  expect_error<InvalidArgument>(
      [&] { run_model(p, "tp=100", R"({"modules": {"h.0.c_fc": "colwise"}})"); },
      {"p_h_0_c_fc", "too few elements"});
  expect_error<NotSupported>([&] { run_model(p, "a=2,b=2,c=2", "{}"); }, {"one or two axes"});
}

}  // namespace models_test
}  // namespace tessera::partition
