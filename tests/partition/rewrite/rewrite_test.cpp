#include "tessera/partition/rewrite/rewrite.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "tessera/program/archive.h"
#include "tessera/program/verify.h"
#include "tests/partition/greedy_assignment.h"
#include "tests/support_pure/expect_error.h"

namespace tessera::partition {
namespace rewrite_test {

using program::Argument;
using program::ExportedProgram;
using program::Node;
using program::ValueId;
using tessera::test::expect_error;
using test::greedy_assignment;
using test::Marks;

ExportedProgram load(const std::string& name) {
  return program::Archive::open("tests/program/data/" + name + ".pt2")->read_program();
}

const DeviceMesh kTwo = DeviceMesh::parse("tp=2");
const Marks kBlock = {{"embed.weight", "S0"},
                      {"head.weight", "S0"},
                      {"qkv.weight", "S0"},
                      {"qkv.bias", "S0"},
                      {"out.weight", "S1"}};

/// "linear all_reduce wait_tensor": the ops in order.
std::vector<std::string> ops_of(const ExportedProgram& program) {
  std::vector<std::string> out;
  for (const Node& node : program.graph.nodes) {
    const std::string op = node.op_name().first;
    out.push_back(op.empty() ? node.target : op.substr(op.find("::") + 2));
  }
  return out;
}

int64_t count(const std::vector<std::string>& ops, std::string_view name) {
  return std::ranges::count(ops, name);
}

std::string meta_of(const ExportedProgram& program, std::string_view value) {
  return program.graph.value(*program.graph.find_value(value)).tensor->to_text();
}

TEST(Rewrite, ARowwiseLinearIsOneAllReduce) {
  const auto program = load("linear");
  const auto assignment = greedy_assignment(program, kTwo, {{"weight", "S1"}});
  const auto first = program_of_rank(program, assignment, 0);
  EXPECT_EQ(ops_of(first),
            (std::vector<std::string>{"slice", "linear", "all_reduce", "wait_tensor"}));
  // The bias counts once.
  const auto second = program_of_rank(program, assignment, 1);
  EXPECT_EQ(ops_of(second), (std::vector<std::string>{"slice", "zeros_like", "linear", "all_reduce",
                                                      "wait_tensor"}));
  EXPECT_EQ(meta_of(first, "p_weight"), "f32 2x2");  // 3 columns over 2 ranks
  EXPECT_EQ(meta_of(second, "p_weight"), "f32 2x1");
  const Node& reduce = first.graph.nodes[2];
  EXPECT_EQ(reduce.find("group_name")->as<std::string>(), "0");
  EXPECT_EQ(reduce.find("reduce_op")->as<std::string>(), "sum");
  EXPECT_EQ(first.graph.value(first.graph.outputs[0].as<ValueId>()).name, "wait_tensor");
  EXPECT_EQ(first.signature.outputs[0].arg->as<ValueId>(), first.graph.outputs[0].as<ValueId>());
}

TEST(Rewrite, UnevenPartsArePaddedAndTrimmed) {
  const auto program = load("linear");
  const auto mesh = DeviceMesh::parse("tp=3");
  const auto assignment = greedy_assignment(program, mesh, {{"weight", "S0"}, {"bias", "S0"}});
  const auto last = program_of_rank(program, assignment, 2);  // 2 rows over 3 ranks: 1,1,0
  EXPECT_EQ(meta_of(last, "p_weight"), "f32 0x3");
  EXPECT_EQ(count(ops_of(last), "constant_pad_nd"), 1);
  EXPECT_EQ(count(ops_of(program_of_rank(program, assignment, 0)), "constant_pad_nd"), 0);
}

TEST(Rewrite, NothingChangesWhereNothingIsSharded) {
  for (const char* name : {"linear", "block", "block_dynamic", "block_core", "branch", "masked"}) {
    const auto program = load(name);
    const auto local = program_of_rank(program, greedy_assignment(program, kTwo, {}), 1);
    EXPECT_EQ(program::print_program(local).model, program::print_program(program).model) << name;
  }
}

TEST(Rewrite, SizesInViewsBecomeLocal) {
  const auto program = load("block");
  const auto local = program_of_rank(program, greedy_assignment(program, kTwo, kBlock), 0);
  EXPECT_EQ(meta_of(local, "linear"), "f32 2x6x12");
  EXPECT_EQ(program::problems_of(local), std::vector<std::string>());
  EXPECT_EQ(meta_of(local, "p_qkv_weight"), "f32 12x8");
  EXPECT_EQ(local.find_payload("qkv.weight")->meta->to_text(), "f32 12x8");
  EXPECT_EQ(local.find_payload("embed.weight")->meta->to_text(), "f32 5x8");
}

TEST(Rewrite, AValueReadTwiceIsGatheredOnce) {
  const auto program = load("block");
  const auto assignment = greedy_assignment(program, kTwo, kBlock);
  const auto ops = ops_of(program_of_rank(program, assignment, 0));
  int64_t collectives = 0;
  for (const auto& move : assignment.redistributions) {
    for (const auto& step : plan::cached_plan(move.from, move.to)->steps) {
      collectives += plan::is_local(step.move) ? 0 : 1;
    }
  }
  EXPECT_EQ(count(ops, "wait_tensor"), collectives);
}

/// The collective starts at its input and is awaited at its reader.
TEST(Rewrite, CollectivesOverlapWithTheNodesBetween) {
  auto program = load("block");
  const auto assignment = greedy_assignment(program, kTwo, kBlock);
  const auto local = program_of_rank(program, assignment, 0);
  bool overlaps = false;
  const auto ops = ops_of(local);
  for (size_t i = 0; i < ops.size(); ++i) {
    const auto& node = local.graph.nodes[i];
    if (ops[i] != "wait_tensor") continue;
    const auto from = node.find("tensor")->as<ValueId>();
    for (size_t k = 0; k + 1 < i; ++k) {
      const auto& output = local.graph.nodes[k].outputs;
      overlaps |= !output.empty() && output[0].kind == program::ArgKind::tensor &&
                  output[0].as<ValueId>() == from;
    }
  }
  EXPECT_TRUE(overlaps);
}

TEST(Rewrite, SymbolsStayAndShardedDimsAreSharesOfThem) {
  const auto program = load("block_dynamic");
  auto assignment = greedy_assignment(program, kTwo, {{"tokens", "S0"}});
  assignment.divisible = {{"s52", 2}};
  const auto local = program_of_rank(program, assignment, 0);
  // The caller passes half of the batch: the symbol is that half.
  EXPECT_EQ(meta_of(local, "tokens"), "i64 s52xs27");
  EXPECT_EQ(local.range_constraints[0].second.max, 32);
  EXPECT_EQ(program::problems_of(local), std::vector<std::string>());
}

TEST(Rewrite, ASymbolThatIsShardedInsideIsCheckedWhenItRuns) {
  const auto program = load("block_dynamic");
  auto assignment = greedy_assignment(program, kTwo, kBlock);
  assignment.divisible = {{"s52", 2}};
  const auto local = program_of_rank(program, assignment, 0);
  const auto ops = ops_of(local);
  EXPECT_EQ(count(ops, "_assert_scalar"), 1);
  EXPECT_EQ(ops[0], "sym_size");
  EXPECT_EQ(local.graph.nodes[1].target, "_operator.mod");
  EXPECT_EQ(program::problems_of(local), std::vector<std::string>());
}

TEST(Rewrite, ASymbolIsNotShardedUnevenly) {
  const auto program = load("block_dynamic");  // a batch of 2 at export
  const auto mesh = DeviceMesh::parse("tp=3");
  const auto assignment = greedy_assignment(program, mesh, {{"tokens", "S0"}});
  expect_error<NotSupported>([&] { program_of_rank(program, assignment, 0); },
                             {"s52", "unevenly", "equal parts"});
}

TEST(Rewrite, GroupsOfTwoAxesHaveTheirOwnNames) {
  const auto program = load("linear");
  const auto mesh = DeviceMesh::parse("dp=2,tp=2");
  const auto assignment = greedy_assignment(program, mesh, {{"weight", "R,S1"}});
  std::vector<std::string> names;
  for (int rank = 0; rank < 4; ++rank) {
    const auto local = program_of_rank(program, assignment, rank);
    for (const Node& node : local.graph.nodes) {
      if (const auto* group = node.find("group_name")) names.push_back(group->as<std::string>());
    }
  }
  EXPECT_EQ(names, (std::vector<std::string>{"3", "3", "4", "4"}));
}

}  // namespace rewrite_test
}  // namespace tessera::partition
