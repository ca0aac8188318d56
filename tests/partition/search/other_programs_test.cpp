#include <gtest/gtest.h>

#include "tessera/base/errors.h"
#include "tessera/partition/search/auto_plan.h"
#include "tests/partition/programs.h"
#include "tests/support_pure/expect_error.h"

namespace tessera::partition {
namespace other_programs_test {

using namespace test;  // NOLINT
using tessera::test::expect_error;

Assignment run_other(const std::string& name, const std::string& mesh, const std::string& plan) {
  const auto p = program::Archive::open("tests/program/data/" + name + ".pt2")->read_program();
  return propagate(p, DeviceMesh::parse(mesh), Plan::parse(plan, "plan"));
}

// A buffer that the program writes, constants, nested inputs, a higher-order op, infinities.
TEST(OtherPrograms, AreAssigned) {
  for (const char* name : {"linear", "block", "block_dynamic", "block_core", "masked", "branch"}) {
    for (const char* mesh : {"tp=2", "dp=2,tp=2", "tp=1"})
      EXPECT_EQ(run_other(name, mesh, "{}").totals.collectives, 0) << name;
  }
}

TEST(OtherPrograms, WhatIsWrittenInPlaceStaysWhole) {
  for (const char* name : {"block", "block_dynamic", "block_core"}) {
    const auto p =
        program::Archive::open(join_text("tests/program/data/", name, ".pt2"))->read_program();
    AutoOptions options;
    options.choose.weight_limit = 900;
    const AutoPlan found = auto_plan(p, DeviceMesh::parse("tp=2"), {}, options);
    EXPECT_EQ(weight(p, found.assignment, "calls"), "R");
    for (size_t i = 0; i < p.signature.outputs.size(); ++i) {
      if (p.signature.outputs[i].kind == program::OutputKind::buffer_mutation) {
        EXPECT_TRUE(found.assignment.outputs[i].is_replicated());
      }
    }
  }
}

TEST(OtherPrograms, ALimitThatAnOpWithoutARuleBreaksNamesTheOp) {
  auto p = load("mlp_raw");
  for (auto& node : p.graph.nodes) {
    if (node.target == "torch.ops.aten.linear.default")
      node.target = "torch.ops.own.linear.default";
  }
  AutoOptions options;
  options.choose.weight_limit = 12000;  // of 37,824 bytes
  expect_error<InvalidArgument>([&] { auto_plan(p, DeviceMesh::parse("tp=4"), {}, options); },
                                {"no plan was found", "weight stays whole", "own::linear"});
}

TEST(OtherPrograms, TiedWeightsStayTied) {
  const auto p = program::Archive::open("tests/program/data/block.pt2")->read_program();
  const Assignment a = run_other("block", "tp=2", R"({"modules": {"embed": "vocabulary"}})");
  EXPECT_EQ(weight(p, a, "embed.weight"), "S0");
  EXPECT_EQ(weight(p, a, "head.weight"), "S0");
}

}  // namespace other_programs_test
}  // namespace tessera::partition
