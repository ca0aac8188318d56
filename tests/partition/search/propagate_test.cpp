#include "tessera/partition/search/propagate.h"

#include <gtest/gtest.h>

#include "tests/partition/programs.h"
#include "tests/support_pure/expect_error.h"

namespace tessera::partition {
namespace propagate_test {

using namespace test;  // NOLINT
using tessera::test::expect_error;

Assignment run_plan(const program::ExportedProgram& p, const std::string& mesh,
                    const std::string& plan) {
  return propagate(p, DeviceMesh::parse(mesh), Plan::parse(plan, "plan"));
}

const std::string kMlp = R"({"modules": {"up": "colwise", "down": "rowwise"}})";
const std::string kGpt = R"({"modules": {"h.*.c_*": "colwise", "h.*.*_proj": "rowwise"}})";

class PropagateEveryForm : public ::testing::TestWithParam<std::string> {};
INSTANTIATE_TEST_SUITE_P(Propagate, PropagateEveryForm, ::testing::ValuesIn(forms()),
                         [](const auto& info) { return info.param; });

TEST_P(PropagateEveryForm, ARowwisePairTakesOneAllReduce) {
  const auto p = load("mlp_" + GetParam());
  for (const char* mesh : {"tp=2", "tp=3", "tp=4", "tp=5"}) {  // 96 columns: 5 is uneven
    const Assignment a = run_plan(p, mesh, kMlp);
    EXPECT_EQ(a.totals.collectives, 1) << mesh << "\n" << text(p, a);
    EXPECT_EQ(count(a, plan::Move::all_reduce), 1);
  }
}

TEST_P(PropagateEveryForm, FusedWeightsAreShardedWithinEachPart) {
  const auto p = load("gpt_" + GetParam());
  for (const char* mesh : {"tp=2", "tp=3", "tp=4"}) {
    const Assignment a = run_plan(p, mesh, kGpt);
    EXPECT_EQ(a.totals.collectives, 4) << text(p, a);
    EXPECT_EQ(count(a, plan::Move::all_reduce), 4);
    EXPECT_EQ(weight(p, a, "h.0.c_attn.weight"), "SS1(3)");
    EXPECT_EQ(weight(p, a, "h.0.c_attn.bias"), "SS0(3)");
    EXPECT_EQ(a.totals.lower_bound, a.totals.seconds());
  }
}

TEST(Propagate, WithoutPinsNothingIsSharded) {
  const auto p = load("gpt_raw");
  const Assignment a = run_plan(p, "tp=4", "{}");
  EXPECT_EQ(a.totals.collectives, 0);
  for (const auto& s : a.values) EXPECT_TRUE(!s.defined() || s.is_replicated());
}

// A shard that no row of the reader takes: before anything is written, with the node and the
// reason.
TEST(Propagate, SaysWhyAPinIsNotPossible) {
  const auto p = load("mlp_raw");
  expect_error<InvalidArgument>([&] { run_plan(p, "tp=97", kMlp); }, {"p_up_", "not possible"});
}

}  // namespace propagate_test
}  // namespace tessera::partition
