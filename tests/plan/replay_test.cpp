// Every plan, replayed on integers, reaches its target; and what else holds for all plans.
#include "tests/support_pure/replay.h"

#include <gtest/gtest.h>

#include "tessera/base/text.h"
#include "tessera/plan/canonical.h"
#include "tessera/plan/fuse.h"
#include "tessera/plan/search.h"
#include "tests/support_pure/random_problems.h"

namespace tessera::plan {
namespace {

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

/// What a rank can tell of a plan: the moves, the axes and the placements.
std::string seen(const Plan& plan) {
  std::string out;
  for (const auto& step : plan.steps) {
    out += join_text(step, " (", step.bytes, " B, ", step.seconds, " s)\n");
  }
  return out;
}

TEST(Replay, PlansReachTheirTargets) {
  for_each_seed(20'000, [](Rng& rng) {
    const auto c = test::random_problem(rng);
    SCOPED_TRACE(c.to_text());
    const Plan plan = make_plan(c.from, c.to, c.machine);
    SCOPED_TRACE(plan.to_text());
    EXPECT_EQ(test::replay(plan, rng.next()), "");
    expect_chain(plan, c.from, c.to);
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
      const auto mesh = c.from.mesh().seen_from(rng.int_between(0, c.from.mesh().size() + 1));
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

}  // namespace
}  // namespace tessera::plan
