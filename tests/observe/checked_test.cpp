// Checked mode, with real processes; and the comparison that it stands on.
#include "tessera/observe/checked.h"

#include <gtest/gtest.h>

#include <thread>

#include "tessera/comm/processes.h"
#include "tessera/comm/threads.h"
#include "tessera/comm/world.h"
#include "tessera/observe/call_site.h"
#include "tests/comm/mismatches.h"
#include "tests/comm/process_links.h"
#include "tests/support/processes.h"

namespace tessera::comm {
namespace checked_test {

using testing::error_of;
using testing::failures;
using testing::mark;
using testing::run_processes;
using testing::Scenario;

const Scenario kMismatches("checked_mismatches", [] {
  const int rank = std::stoi(std::getenv("RANK"));
  auto store = own_store(rank == 0);
  for (const Mismatch& mismatch : mismatches()) {
    auto world = make_process_world({.rank = rank,
                                     .size = 3,
                                     .store = store,
                                     .name = mismatch.name,
                                     .timeout = std::chrono::seconds(600)});
    set_checked(*world, true);
    all_reduce(*world);
    const std::string error = error_of([&] { mismatch.call(rank, links_of(*world)); });
    EXPECT_TRUE(error.starts_with("PeerError")) << mismatch.name << ": " << error;
    EXPECT_NE(error.find("the ranks disagree: "), std::string::npos) << error;
    EXPECT_NE(error.find(mismatch.difference), std::string::npos) << mismatch.name << ": " << error;
  }
});

TEST(Checked, EveryRankLearnsAtOnceWhichTwoRanksDisagree) {
  EXPECT_EQ(failures(run_processes(kMismatches, {.size = 3})), "");
}

/// Sound calls pass, and the store does not grow with them.
const Scenario kSound("checked_sound", [] {
  auto world = process_world();
  EXPECT_TRUE(checked(*world));
  auto store = own_store(false);
  for (int i = 0; i < 5; ++i) all_reduce(*world);
  const auto keys = store->getNumKeys();
  for (int i = 0; i < 50; ++i) all_reduce(*world);
  EXPECT_LE(store->getNumKeys(), keys + 3);  // a rank may be a call ahead
  set_checked(*world, false);
  all_reduce(*world);
});

TEST(Checked, SoundCallsPassAndLeaveNothingBehind) {
  EXPECT_EQ(failures(run_processes(
                kSound, {.size = 3, .environment = {{"TESSERA_CHECK_COLLECTIVES", "1"}}})),
            "");
}

const Scenario kNotes("checked_notes", [] {
  auto world = process_world();
  set_checked(*world, true);
  CallSite site({.note = world->rank() == 2 ? "S1 -> R" : "S0 -> R"});
  mark(error_of([&] { all_reduce(*world); }));
});

TEST(Checked, TheCallersNoteIsComparedToo) {
  for (const auto& result : run_processes(kNotes, {.size = 3})) {
    EXPECT_TRUE(result.says("rank 0 says \"S0 -> R\", rank 2 says \"S1 -> R\""))
        << result.to_text();
  }
}

const Scenario kAbsent("checked_absent", [] {
  auto world = process_world();
  set_checked(*world, true);
  all_reduce(*world);
  if (world->rank() == 1) {
    std::this_thread::sleep_for(std::chrono::seconds(4));
    return;
  }
  mark(error_of([&] { all_reduce(*world); }));
});

TEST(Checked, ARankThatDoesNotComeIsNamed) {
  const auto results =
      run_processes(kAbsent, {.size = 3, .environment = {{"TESSERA_TIMEOUT_S", "2"}}});
  for (const auto& result : results) {
    if (result.rank == 1) continue;
    EXPECT_TRUE(result.says("PeerError")) << result.to_text();
    EXPECT_TRUE(result.says("call 2: rank(s) 1 did not arrive within 2000 ms")) << result.to_text();
  }
}

TEST(Checked, ThreadRanksNeedNoCheckedMode) {
  run_ranks(2, [](int) {
    set_checked(*current_world(), true);
    EXPECT_FALSE(checked(*current_world()));
  });
}

TEST(CallInfo, ReadsBackWhatItWrites) {
  CallInfo call;
  call.what = Collective::all_to_all_single;
  call.dtype = c10::ScalarType::BFloat16;
  call.reduce = 3;
  call.root = 1;
  call.in.add({2, 3});
  call.in.add({});
  call.out.add({0});
  call.splits_in = {1, 2};
  const auto read = decode(encode(call));
  ASSERT_TRUE(read.has_value());
  EXPECT_EQ(encode(*read), encode(call));
  EXPECT_TRUE(read->in == call.in);
  EXPECT_EQ(digest(*read), digest(call));
  EXPECT_FALSE(decode("").has_value());
  EXPECT_FALSE(decode("99 1 1 1").has_value());
  EXPECT_FALSE(decode("1 6 0 0 1 99999999999 1").has_value());
}

TEST(CallInfo, EqualElementsInAnotherShapeDifferInCheckedModeOnly) {
  const GroupInfo group{.ranks = {0, 1}, .index = 0, .name = "g", .world_name = "w"};
  RankCall a{.index = 0, .sequence = 1, .call = {}};
  a.call.what = Collective::all_reduce;
  a.call.in.add({4});
  RankCall b = a;
  b.index = 1;
  b.call.in = {};
  b.call.in.add({2, 2});
  EXPECT_EQ(digest(a.call), digest(b.call));
  EXPECT_TRUE(first_difference(std::vector<RankCall>{a, b}, group).has_value());
  b.sequence = 2;  // not the same call
  EXPECT_FALSE(first_difference(std::vector<RankCall>{a, b}, group).has_value());
}

}  // namespace checked_test
}  // namespace tessera::comm
