#include "tessera/partition/propagate.h"

#include <gtest/gtest.h>

#include "tests/partition/programs.h"
#include "tests/support_pure/expect_error.h"

namespace tessera::partition {
namespace {

using namespace test;  // NOLINT
using tessera::test::expect_error;

void pin(Pins& pins, const program::ExportedProgram& p, const std::string& name, Placement to) {
  for (const auto& input : p.signature.inputs) {
    if (input.target == name) pins.set(input.arg->as<program::ValueId>(), 0, {to, to.is_sharded()});
  }
}

Pins mlp_pins(const program::ExportedProgram& p) {
  Pins pins;
  pin(pins, p, "up.weight", Shard(0));
  pin(pins, p, "up.bias", Shard(0));
  pin(pins, p, "down.weight", Shard(1));
  return pins;
}

class EveryForm : public ::testing::TestWithParam<std::string> {};
INSTANTIATE_TEST_SUITE_P(Propagate, EveryForm, ::testing::ValuesIn(forms()),
                         [](const auto& info) { return info.param; });

TEST_P(EveryForm, ARowwisePairTakesOneAllReduce) {
  const auto p = load("mlp_" + GetParam());
  for (const char* mesh : {"tp=2", "tp=3", "tp=4", "tp=5"}) {  // 96 columns: 5 is uneven
    const Assignment a = propagate(p, DeviceMesh::parse(mesh), mlp_pins(p));
    EXPECT_EQ(a.totals.collectives, 1) << mesh << "\n" << text(p, a);
    EXPECT_EQ(count(a, plan::Move::all_reduce), 1);
  }
}

TEST_P(EveryForm, FusedWeightsAreCutWithinEachPart) {
  const auto p = load("gpt_" + GetParam());
  Pins pins;
  for (const char* layer : {"h.0.", "h.1."}) {
    for (const char* m : {"c_attn", "c_fc"}) {
      pin(pins, p, join_text(layer, m, ".weight"), Shard(1));
      pin(pins, p, join_text(layer, m, ".bias"), Shard(0));
    }
    for (const char* m : {"attn_proj", "mlp_proj"})
      pin(pins, p, join_text(layer, m, ".weight"), Shard(0));
  }
  for (const char* mesh : {"tp=2", "tp=3", "tp=4"}) {
    const Assignment a = propagate(p, DeviceMesh::parse(mesh), pins);
    EXPECT_EQ(a.totals.collectives, 4) << text(p, a);
    EXPECT_EQ(count(a, plan::Move::all_reduce), 4);
    EXPECT_EQ(weight(p, a, "h.0.c_attn.weight"), "SS1(3)");
    EXPECT_EQ(weight(p, a, "h.0.c_attn.bias"), "SS0(3)");
    EXPECT_EQ(a.totals.lower_bound, a.totals.seconds());
  }
}

TEST(Propagate, WithoutPinsNothingIsCut) {
  const auto p = load("gpt_raw");
  const Assignment a = propagate(p, DeviceMesh::parse("tp=4"), Pins());
  EXPECT_EQ(a.totals.collectives, 0);
  for (const auto& s : a.values) EXPECT_TRUE(!s.defined() || s.is_replicated());
}

// A cut that no row of the reader takes: before anything is written, with the node and the reason.
TEST(Propagate, SaysWhyAPinIsNotPossible) {
  const auto p = load("mlp_raw");
  Pins pins;
  pin(pins, p, "up.weight", Shard(0));
  pin(pins, p, "up.bias", Shard(0));
  expect_error<InvalidArgument>([&] { propagate(p, DeviceMesh::parse("tp=97"), pins); },
                                {"p_up_", "not possible"});
}

}  // namespace
}  // namespace tessera::partition
