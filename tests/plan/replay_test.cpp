// Every plan, replayed on integers, reaches its target; and what else holds for all plans.
#include "tests/support_pure/replay.h"

#include <gtest/gtest.h>

#include <cstdlib>

#include "tessera/base/text.h"
#include "tessera/plan/canonical.h"
#include "tessera/plan/fuse.h"
#include "tessera/plan/search.h"
#include "tests/support_pure/random_problems.h"

namespace tessera::plan {
namespace replay_test {

using test::for_each_seed;
using test::Rng;

/// Each step begins where the last one ended; the ends are the plan's but for their names.
void expect_chain(const Plan& plan, const Sharding& from, const Sharding& to) {
  if (plan.steps.empty()) {
    EXPECT_TRUE(test::same_parts(from, to));
    return;
  }
  EXPECT_TRUE(test::same_parts(plan.steps.front().from, from));
  EXPECT_TRUE(test::same_parts(plan.steps.back().to, to));
  EXPECT_EQ(plan.steps.front().from, canonical(from));
  EXPECT_EQ(plan.steps.back().to, canonical(to));
  for (size_t i = 0; i + 1 < plan.steps.size(); ++i) {
    EXPECT_EQ(plan.steps[i].to, plan.steps[i + 1].from);
  }
}

/// What a rank can see of a plan: the moves, the axes and the placements.
std::string seen(const Plan& plan) {
  std::string out;
  for (const auto& step : plan.steps) {
    out += join_text(step, " (", step.bytes, " B, ", step.seconds, " s)\n");
  }
  return out;
}

void expect_says(const std::string& what, const std::string& part) {
  EXPECT_NE(what.find(part), std::string::npos) << "\"" << what << "\" does not say " << part;
}

/// A plan of one step on dp=2,tp=2 of 4x4.
std::string replay_step(Move move, const std::string& from, const std::string& to,
                        std::vector<int> axes) {
  const auto parse = [](const std::string& placements) {
    return Sharding::parse("dp=2,tp=2 : " + placements + " : 4x4");
  };
  const Step step{move, std::move(axes), parse(from), parse(to)};
  return test::replay({step.from, step.to, {step}}, 1);
}

TEST(ReplayItself, FindsWhatIsWrong) {
  EXPECT_EQ(replay_step(Move::all_gather, "S0,S0", "S0,R", {1}), "");
  // dp is not the innermost.
  expect_says(replay_step(Move::all_gather, "S0,S0", "R,S0", {0}), "no rank");
  EXPECT_EQ(replay_step(Move::slice, "R,S0", "S0#1,S0#0", {0}), "");
  expect_says(replay_step(Move::slice, "R,S0", "S0,S0", {0}), "no rank");
  // tp shards inside dp and must take part.
  EXPECT_EQ(replay_step(Move::all_to_all, "S0,S0", "S0#1,S0#0", {0, 1}), "");
  expect_says(replay_step(Move::all_to_all, "S0,S0", "S1,S0", {0}), "no rank");
  expect_says(replay_step(Move::all_reduce, "P,R", "R,R", {1}), "axis dp");
  expect_says(replay_step(Move::all_reduce, "P,P", "R,R", {0}), "axis tp");
  expect_says(replay_step(Move::all_gather, "P,S0", "P,R", {0}), "axis dp");
  expect_says(replay_step(Move::rescale, "P,R", "P(max),R", {0}), "axis dp");
  expect_says(replay_step(Move::slice, "R,R", "S0,R", {}), "none");
}

TEST(ReplayItself, MissesAStep) {
  Plan plan = make_plan(Sharding::parse("dp=2,tp=2 : P,S0 : 4x4"),
                        Sharding::parse("dp=2,tp=2 : R,S1 : 4x4"), cost::Machine());
  EXPECT_EQ(test::replay(plan, 1), "");
  for (size_t i = 0; i < plan.steps.size(); ++i) {
    Plan broken = plan;
    broken.steps.erase(broken.steps.begin() + static_cast<std::ptrdiff_t>(i));
    EXPECT_NE(test::replay(broken, 1), "") << "without step " << i << " of\n" << plan.to_text();
  }
  // Nothing is reduced: the addends are not the value.
  plan.steps.clear();
  plan.to = Sharding::parse("dp=2,tp=2 : R,S0 : 4x4");
  expect_says(test::replay(plan, 1), "at the end");
}

void expect_replay(const test::RandomProblem& p, uint64_t seed) {
  SCOPED_TRACE(p.to_text());
  const Plan plan = make_plan(p.from, p.to, p.machine);
  SCOPED_TRACE(plan.to_text());
  EXPECT_EQ(test::replay(plan, seed), "");
  expect_chain(plan, p.from, p.to);
}

TEST(Replay, PlansReachTheirTargets) {
  for_each_seed(20'000, [](Rng& rng) {
    const auto p = test::random_problem(rng);
    expect_replay(p, rng.next());
  });
}

TEST(Replay, PlansReachTheirTargetsOnFourAxes) {
  for_each_seed(2'000, [](Rng& rng) {
    const int dims = rng.int_between(1, 5);
    const auto p = test::dense_problem(
        rng, {.axes = 4, .dims = dims, .axis_sizes = {2}, .max_size = dims > 3 ? 4 : 8});
    expect_replay(p, rng.next());
  });
}

TEST(Replay, PlansCostNoMoreThanTheWayThroughReplication) {
  for_each_seed(10'000, [](Rng& rng) {
    const auto c = test::random_problem(rng);
    SCOPED_TRACE(c.to_text());
    const double cost = make_plan(c.from, c.to, c.machine).seconds();
    const Problem problem(canonical(c.from), canonical(c.to), c.machine);
    const Path plain = path_through_replication(problem);
    const double room = 1 + 1e-12;
    EXPECT_LE(cost, path_seconds(problem, plain) * room);
    EXPECT_LE(cost, path_seconds(problem, fuse(problem, plain)) * room);
  });
}

/// On so many axes the search may stop at its bound and take the best it has.
TEST(Replay, PlansOnSevenAndEightAxesAreRightAndNoCostlierThanReplication) {
  int gave_up = 0;
  for_each_seed(40, [&](Rng& rng) {
    const int dims = rng.int_between(1, 5);
    const auto p = test::dense_problem(rng, {.axes = rng.int_between(7, 8),
                                             .dims = dims,
                                             .axis_sizes = {2},
                                             .max_size = dims > 3 ? 3 : 6});
    expect_replay(p, rng.next());
    const Problem problem(canonical(p.from), canonical(p.to), p.machine);
    SearchStats stats;
    const Path found = cheapest_path(problem, &stats);
    gave_up += stats.gave_up ? 1 : 0;
    EXPECT_LE(path_seconds(problem, found),
              path_seconds(problem, path_through_replication(problem)) * (1 + 1e-12))
        << p.to_text();
  });
  if (std::getenv("TESSERA_SEED") != nullptr) return;  // one problem need not be a hard one
  EXPECT_GT(gave_up, 0) << "no problem was hard enough to show what this test is for";
}

TEST(Replay, NothingIsDoneToStay) {
  for_each_seed(3'000, [](Rng& rng) {
    const auto c = test::random_problem(rng);
    EXPECT_TRUE(make_plan(c.from, c.from, c.machine).steps.empty()) << c.from.to_text();
  });
}

TEST(Replay, PlansAreTheSameOnEveryRankAndEveryTime) {
  for_each_seed(3'000, [](Rng& rng) {
    const auto c = test::random_problem(rng);
    SCOPED_TRACE(c.to_text());
    const std::string plan = seen(make_plan(c.from, c.to, c.machine));
    EXPECT_EQ(seen(make_plan(c.from, c.to, c.machine)), plan);
    for (int i = 0; i < 3; ++i) {
      // Some of the ranks are outside the mesh.
      const auto mesh = c.from.mesh().with_own_rank(rng.int_between(0, c.from.mesh().size() + 1));
      const auto there = make_plan(c.from.with_mesh(mesh), c.to.with_mesh(mesh), c.machine);
      EXPECT_EQ(seen(there), plan);
      for (const auto& step : there.steps) EXPECT_EQ(step.from.mesh(), mesh);
    }
  });
}

TEST(Replay, PlansBetweenMeshesReachTheirTargets) {
  for_each_seed(3'000, [](Rng& rng) {
    const auto source = test::with_random_ranks(rng, test::random_mesh(rng, 3, 12));
    const auto target = test::with_random_ranks(rng, test::random_mesh(rng, 3, 12));
    const auto shape = test::random_shape(rng, 4, 100);
    const auto from = test::random_sharding(rng, source, shape);
    const auto to = test::random_sharding(rng, target, shape);
    SCOPED_TRACE(join_text(from, "  ->  ", to));
    const Plan plan = make_plan(from, to, test::random_machine(rng));
    SCOPED_TRACE(plan.to_text());
    EXPECT_EQ(test::replay(plan, rng.next()), "");
    for (size_t i = 0; i + 1 < plan.steps.size(); ++i) {
      EXPECT_EQ(plan.steps[i].to, plan.steps[i + 1].from);
    }
  });
}

}  // namespace replay_test
}  // namespace tessera::plan
