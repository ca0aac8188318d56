// Known transitions and their plans, as text.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "tessera/base/text.h"
#include "tessera/plan/plan.h"
#include "tests/support_pure/expect_error.h"
#include "tests/support_pure/replay.h"

namespace tessera::plan {
namespace table_test {

struct Row {
  std::string from;
  std::string to;
  std::string plan;  // one line a step
};

void expect_plans(const cost::Machine& machine, const std::vector<Row>& rows) {
  for (const auto& row : rows) {
    SCOPED_TRACE(join_text(row.from, "  ->  ", row.to));
    const Plan plan = make_plan(Sharding::parse(row.from), Sharding::parse(row.to), machine);
    EXPECT_EQ(plan.to_text(), row.plan);
    if (plan.from.numel() <= 512 * 512) {
      EXPECT_EQ(test::replay(plan, 1), "");
    }
  }
}

const cost::Machine kCpu = cost::Machine::cpu_processes();
const cost::Machine kAccelerators;  // 8 to a host

TEST(Plan, OneAxisTakesOneStep) {
  const std::vector<Row> rows = {
      {"tp=4 : S0 : 8x16", "tp=4 : R : 8x16", "all_gather over tp  S0 -> R\n"},
      {"tp=2 : S0 : 8x16", "tp=2 : S1 : 8x16", "all_to_all over tp  S0 -> S1\n"},
      {"tp=4 : S0 : 512x512", "tp=4 : S1 : 512x512", "all_to_all over tp  S0 -> S1\n"},
      {"tp=4 : P : 8x16", "tp=4 : R : 8x16", "all_reduce over tp  P(sum) -> R\n"},
      {"tp=4 : P(max) : 8x16", "tp=4 : S0 : 8x16", "reduce_scatter over tp  P(max) -> S0\n"},
      {"tp=4 : R : 8x16", "tp=4 : S0 : 8x16", "slice over tp  R -> S0\n"},
      {"tp=4 : R : 8x16", "tp=4 : P(min) : 8x16", "keep_one over tp  R -> P(min)\n"},
      {"tp=4 : P : 8x16", "tp=4 : P(avg) : 8x16", "rescale over tp  P(sum) -> P(avg)\n"},
      {"tp=4 : P(avg) : 8x16", "tp=4 : P : 8x16", "rescale over tp  P(avg) -> P(sum)\n"},
      {"tp=4 : S0 : 5x3", "tp=4 : R : 5x3", "all_gather over tp  S0 -> R\n"},
      {"tp=4 : S0 : 0x3", "tp=4 : R : 0x3", "all_gather over tp  S0 -> R\n"},
      {"tp=4 : P : scalar", "tp=4 : R : scalar", "all_reduce over tp  P(sum) -> R\n"},
  };
  expect_plans(kCpu, rows);
}

TEST(Plan, OneAxisTakesTwoStepsWhereNoMoveLeadsThere) {
  const std::vector<Row> rows = {
      {"tp=4 : P : 8x16", "tp=4 : P(max) : 8x16",
       "all_reduce over tp  P(sum) -> R\n"
       "keep_one over tp  R -> P(max)\n"},
      {"tp=4 : S0 : 8x16", "tp=4 : P : 8x16",
       "all_gather over tp  S0 -> R\n"
       "keep_one over tp  R -> P(sum)\n"},
  };
  expect_plans(kCpu, rows);
}

/// A message has a price of its own: four ranks gather a small tensor sooner than they exchange it.
TEST(Plan, SmallTensorsAreGatheredAndSliced) {
  const std::vector<Row> rows = {
      {"tp=4 : S0 : 8x16", "tp=4 : S1 : 8x16",
       "all_gather over tp  S0 -> R\n"
       "slice over tp  R -> S1\n"},
      {"dp=2,tp=2 : P,P : 8x16", "dp=2,tp=2 : S0,R : 8x16",
       "all_reduce over dpxtp  P(sum),P(sum) -> R,R\n"
       "slice over dp  R,R -> S0,R\n"},
  };
  expect_plans(kCpu, rows);
}

TEST(Plan, StepsOfSeveralAxesMergeWhereLatencyCounts) {
  const std::vector<Row> rows = {
      {"dp=2,tp=2 : S0,S0 : 8x16", "dp=2,tp=2 : R,R : 8x16",
       "all_gather over dpxtp  S0,S0 -> R,R\n"},
      {"dp=2,tp=2 : S0#1,S0#0 : 8x16", "dp=2,tp=2 : R,R : 8x16",
       "all_gather over tpxdp  S0#1,S0#0 -> R,R\n"},
      {"dp=2,tp=2 : S0,S1 : 8x16", "dp=2,tp=2 : R,R : 8x16",
       "all_gather over dpxtp  S0,S1 -> R,R\n"},
      {"dp=2,tp=2 : P,P : 8x16", "dp=2,tp=2 : R,R : 8x16",
       "all_reduce over dpxtp  P(sum),P(sum) -> R,R\n"},
      {"dp=2,tp=2 : P,P(avg) : 8x16", "dp=2,tp=2 : R,R : 8x16",
       "all_reduce over dpxtp  P(sum),P(avg) -> R,R\n"},
      {"dp=2,tp=2 : P,P : 8x16", "dp=2,tp=2 : S0,S1 : 8x16",
       "reduce_scatter over dpxtp  P(sum),P(sum) -> S0,S1\n"},
      {"dp=2,tp=2 : R,R : 8x16", "dp=2,tp=2 : S0#1,S0#0 : 8x16",
       "slice over tpxdp  R,R -> S0#1,S0#0\n"},
      {"a=2,b=2,c=2 : S0,S0,S1 : 8x16", "a=2,b=2,c=2 : R,R,R : 8x16",
       "all_gather over axbxc  S0,S0,S1 -> R,R,R\n"},
  };
  expect_plans(kCpu, rows);
}

/// 1 GiB; tp is inside a host, dp between hosts.
TEST(Plan, LargeTensorsCrossHostsInSmallPieces) {
  const std::vector<Row> rows = {
      {"dp=4,tp=8 : S0,S1 : 16384x16384", "dp=4,tp=8 : R,R : 16384x16384",
       "all_gather over dp  S0,S1 -> R,S1\n"
       "all_gather over tp  R,S1 -> R,R\n"},
      // dp shards first, so it could not be gathered alone.
      {"dp=4,tp=8 : S0,S0 : 16384x16384", "dp=4,tp=8 : R,R : 16384x16384",
       "all_to_all over tp  S0,S0 -> S0,S1\n"
       "all_gather over dp  S0,S1 -> R,S1\n"
       "all_gather over tp  R,S1 -> R,R\n"},
      // The hierarchical all_reduce.
      {"dp=4,tp=8 : P,P : 16384x16384", "dp=4,tp=8 : R,R : 16384x16384",
       "reduce_scatter over tp  P(sum),P(sum) -> P(sum),S0\n"
       "all_reduce over dp  P(sum),S0 -> R,S0\n"
       "all_gather over tp  R,S0 -> R,R\n"},
      // What is replicated inside the host is sharded for the way between hosts.
      {"dp=4,tp=8 : P,R : 16384x16384", "dp=4,tp=8 : R,R : 16384x16384",
       "slice over tp  P(sum),R -> P(sum),S0\n"
       "all_reduce over dp  P(sum),S0 -> R,S0\n"
       "all_gather over tp  R,S0 -> R,R\n"},
  };
  expect_plans(kAccelerators, rows);
}

TEST(Plan, TheOrderOfShardsDecidesWhatIsAStep) {
  const std::vector<Row> rows = {
      {"dp=2,tp=2 : S0,S0 : 8x16", "dp=2,tp=2 : S0,R : 8x16",
       "all_gather over tp  S0,S0 -> S0,R\n"},
      {"dp=2,tp=2 : S0#1,S0#0 : 8x16", "dp=2,tp=2 : R,S0 : 8x16",
       "all_gather over dp  S0#1,S0#0 -> R,S0\n"},
      {"dp=2,tp=2 : S0,S0 : 4096x4096", "dp=2,tp=2 : R,S0 : 4096x4096",
       "all_to_all over dpxtp  S0,S0 -> S0#1,S0#0\n"
       "all_gather over dp  S0#1,S0#0 -> R,S0\n"},
      {"dp=2,tp=2 : S0,S0 : 4096x4096", "dp=2,tp=2 : S0#1,S0#0 : 4096x4096",
       "all_to_all over dpxtp  S0,S0 -> S0#1,S0#0\n"},
  };
  expect_plans(kCpu, rows);
}

TEST(Plan, SwappedShardsTakeOneAllToAll) {
  const std::vector<Row> rows = {
      {"dp=2,tp=2 : S0,S1 : 8x16", "dp=2,tp=2 : S1,S0 : 8x16",
       "all_to_all over dpxtp  S0,S1 -> S1,S0\n"},
      {"dp=2,tp=2 : S0,S1 : 4096x4096", "dp=2,tp=2 : S1,S0 : 4096x4096",
       "all_to_all over dpxtp  S0,S1 -> S1,S0\n"},
  };
  expect_plans(kAccelerators, rows);
}

TEST(Plan, ReductionsThatDoNotMixAreNeverMixed) {
  const std::vector<Row> rows = {
      {"dp=2,tp=2 : P,R : 8x16", "dp=2,tp=2 : R,P(max) : 8x16",
       "all_reduce over dp  P(sum),R -> R,R\n"
       "keep_one over tp  R,R -> R,P(max)\n"},
      {"dp=2,tp=2 : P,R : 8x16", "dp=2,tp=2 : P(max),P(max) : 8x16",
       "all_reduce over dp  P(sum),R -> R,R\n"
       "keep_one over dpxtp  R,R -> P(max),P(max)\n"},
  };
  expect_plans(kCpu, rows);
}

TEST(Plan, StridedShardsThatDivideAreAnOrderOfShards) {
  const std::vector<Row> rows = {
      {"dp=2,tp=2 : SS0(2),S0 : 8x16", "dp=2,tp=2 : S0#1,S0#0 : 8x16", "nothing to do\n"},
      {"dp=2,tp=2 : SS0(2),S0 : 8x16", "dp=2,tp=2 : R,S0 : 8x16",
       "all_gather over dp  S0#1,S0#0 -> R,S0\n"},
      {"dp=2,tp=2 : R,S0 : 8x16", "dp=2,tp=2 : SS0(2),S0 : 8x16",
       "slice over dp  R,S0 -> S0#1,S0#0\n"},
      {"dp=2,tp=2 : SS0(2),S0 : 7x16", "dp=2,tp=2 : R,R : 7x16",
       "all_gather over dpxtp  SS0(2),S0 -> R,R\n"},
      {"tp=2 : SS0(2) : 512x512", "tp=2 : S0 : 512x512", "all_to_all over tp  SS0(2) -> S0\n"},
  };
  expect_plans(kCpu, rows);
}

TEST(Plan, RaggedShardsAreLeftAndTakenLikeOthers) {
  const std::vector<Row> rows = {
      {"tp=3 : S0[3,3,1] : 7x2", "tp=3 : S0 : 7x2", "nothing to do\n"},
      {"tp=3 : S0[5,0,2] : 7x2", "tp=3 : R : 7x2", "all_gather over tp  S0[5,0,2] -> R\n"},
      {"tp=3 : P : 7x2", "tp=3 : S0[5,0,2] : 7x2", "reduce_scatter over tp  P(sum) -> S0[5,0,2]\n"},
      {"tp=2 : S0[500,12] : 512x512", "tp=2 : S0[12,500] : 512x512",
       "all_to_all over tp  S0[500,12] -> S0[12,500]\n"},
      // The inner table is of the outer pieces, so the outer shard comes first.
      {"dp=2,tp=2 : R,R : 7x4", "dp=2,tp=2 : S0,S0[3,1,0,3] : 7x4",
       "slice over dpxtp  R,R -> S0,S0[3,1,0,3]\n"},
      {"dp=2,tp=2 : S0,S0[3,1,0,3] : 7x4", "dp=2,tp=2 : R,R : 7x4",
       "all_gather over dpxtp  S0,S0[3,1,0,3] -> R,R\n"},
  };
  expect_plans(kCpu, rows);
}

TEST(Plan, AxesOfOneRankCostNothing) {
  const std::vector<Row> rows = {
      {"dp=2,one=1 : S0,S0 : 8x4", "dp=2,one=1 : S0,R : 8x4", "nothing to do\n"},
      {"dp=2,one=1 : S0,P : 8x4", "dp=2,one=1 : S0,P(max) : 8x4", "nothing to do\n"},
      {"one=1,dp=2 : S0,S0 : 8x4", "one=1,dp=2 : R,R : 8x4", "all_gather over dp  R,S0 -> R,R\n"},
      {"a=1,b=1 : S0,P : 8x4", "a=1,b=1 : R,SS1(2) : 8x4", "nothing to do\n"},
  };
  expect_plans(kCpu, rows);
}

TEST(Plan, OtherNamesForTheSameRanksNeedNoTransfer) {
  const std::vector<Row> rows = {
      {"dp=2,tp=2 : S0,R : 8x4", "x=2,y=2 : S0,R : 8x4", "nothing to do\n"},
      {"dp=2,tp=2 : S0,R : 8x4", "x=2,y=2 : R,R : 8x4", "all_gather over dp  S0,R -> R,R\n"},
      // Another shape of mesh, but every rank holds what it is to hold.
      {"dp=2,tp=2 : S0,S0 : 8x4", "world=4 : S0 : 8x4", "nothing to do\n"},
      {"dp=2,tp=2 : R,S0 : 8x4", "tp=2,dp=2@0,2,1,3 : S0,R : 8x4", "nothing to do\n"},
  };
  expect_plans(kCpu, rows);
}

TEST(Plan, MeshesAreCrossedByOneTransfer) {
  const std::vector<Row> rows = {
      {"dp=4 : S0 : 8x4", "dp=2,tp=2@3,2,1,0 : S0,S1 : 8x4",
       "transfer  dp=4 : S0 : 8x4 -> dp=2,tp=2@3,2,1,0 : S0,S1 : 8x4\n"},
      {"dp=2 : S0 : 8x4", "dp=2@1,2 : S0 : 8x4",
       "transfer  dp=2 : S0 : 8x4 -> dp=2@1,2 : S0 : 8x4\n"},
      {"dp=2 : S0 : 8x4", "dp=3@4-6 : R : 8x4",
       "transfer  dp=2 : S0 : 8x4 -> dp=3@4-6 : R : 8x4\n"},
      {"dp=2 : P : 8x4", "dp=2@4,5 : P(max) : 8x4",
       "reduce_scatter over dp  P(sum) -> S0\n"
       "transfer  dp=2 : S0 : 8x4 -> dp=2@4,5 : R : 8x4\n"
       "keep_one over dp  R -> P(max)\n"},
      {"dp=2 : P : 3", "dp=2@4,5 : R : 3",
       "all_reduce over dp  P(sum) -> R\n"
       "transfer  dp=2 : R : 3 -> dp=2@4,5 : R : 3\n"},
  };
  expect_plans(kCpu, rows);
}

TEST(Plan, DtypesAndStridesNeedNoStep) {
  const auto from = Sharding::parse("tp=2 : S0 : 8x4 bf16 {1,8}");
  const auto to = Sharding::parse("tp=2 : R : 8x4");
  const Plan plan = make_plan(from, to, kCpu);
  ASSERT_EQ(plan.steps.size(), 1U);
  EXPECT_EQ(plan.to, to);
  EXPECT_EQ(plan.steps[0].to.to_text(), "tp=2 : R : 8x4 bf16 {1,8}");
  EXPECT_EQ(plan.steps[0].bytes, 8 * 4 * 2 / 2);  // of the source's two bytes an element
  EXPECT_TRUE(make_plan(from, from.with_dtype(DType::f32), kCpu).steps.empty());
}

TEST(Plan, AddsUpItsSteps) {
  const Plan plan = make_plan(Sharding::parse("dp=4,tp=8 : P,P : 1024x1024"),
                              Sharding::parse("dp=4,tp=8 : R,S0 : 1024x1024"), kAccelerators);
  ASSERT_EQ(plan.steps.size(), 2U);
  EXPECT_EQ(plan.seconds(), plan.steps[0].seconds + plan.steps[1].seconds);
  EXPECT_EQ(plan.bytes(), plan.steps[0].bytes + plan.steps[1].bytes);
  EXPECT_TRUE(plan.communicates());
  EXPECT_FALSE(make_plan(Sharding::parse("tp=4 : R : 8"), Sharding::parse("tp=4 : S0 : 8"), kCpu)
                   .communicates());
}

TEST(Plan, RefusesAnotherShape) {
  test::expect_error<InvalidArgument>(
      [] {
        make_plan(Sharding::parse("tp=2 : S0 : 8x4"), Sharding::parse("tp=2 : S0 : 4x8"), kCpu);
      },
      {"shape", "8x4", "4x8"});
}

TEST(Plan, RefusesMoreThanEightAxesOfSeveralRanks) {
  const std::string nine = "a=2,b=2,c=2,d=2,e=2,f=2,g=2,h=2,i=2";
  test::expect_error<NotSupported>(
      [&] {
        make_plan(Sharding::parse(nine + " : S0,R,R,R,R,R,R,R,R : 8"),
                  Sharding::parse(nine + " : R,R,R,R,R,R,R,R,R : 8"), kCpu);
      },
      {"9 axes", "8", "flatten"});
  const std::string eight = "a=2,b=2,c=1,d=2,e=2,f=2,g=2,h=2,i=2";
  EXPECT_EQ(make_plan(Sharding::parse(eight + " : S0,R,S0,R,R,R,R,R,R : 8"),
                      Sharding::parse(eight + " : R,R,R,R,R,R,R,R,R : 8"), kCpu)
                .to_text(),
            "all_gather over a  S0,R,R,R,R,R,R,R,R -> R,R,R,R,R,R,R,R,R\n");
}

}  // namespace table_test
}  // namespace tessera::plan
