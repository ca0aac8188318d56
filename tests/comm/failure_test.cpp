// What the surviving ranks learn when something goes wrong, with real processes over Gloo.
#include "tessera/comm/failure.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <csignal>
#include <cstring>
#include <map>
#include <thread>

#include "tessera/collective/algorithms/pipelined_pack.h"
#include "tessera/comm/processes.h"
#include "tessera/comm/world.h"
#include "tests/comm/mismatches.h"
#include "tests/comm/process_links.h"
#include "tests/support/processes.h"

namespace tessera::comm {
namespace failure_test {

using testing::error_of;
using testing::failures;
using testing::mark;
using testing::ProcessResult;
using testing::run_processes;
using testing::Scenario;

void say(const std::string& error) { mark("error: " + error); }

/// The victim answers no more; the test kills it. What the two others do meanwhile says DURING.
const Scenario kVictim("victim", [] {
  auto world = process_world();
  const int victim = std::stoi(std::getenv("VICTIM"));
  const std::string during = std::getenv("DURING");
  all_reduce(*world);
  if (world->rank() == victim) {
    mark("kill me");
    std::this_thread::sleep_for(std::chrono::minutes(5));
  }
  if (during == "rank 0 comes late" && world->rank() == 0) {
    std::this_thread::sleep_for(std::chrono::milliseconds(500));
  }
  if (during == "rank 2 computes") {
    auto store = own_store(/*host=*/false);
    if (world->rank() == 2) {
      while (!store->check({"rank 0 knows"})) at::mm(at::ones({64, 64}), at::ones({64, 64}));
    }
    say(error_of([&] { all_reduce(*world); }));
    if (world->rank() == 0) store->set("rank 0 knows", std::vector<uint8_t>{1});
    return;
  }
  say(error_of([&] { all_reduce(*world); }));
});

using Environment = std::map<std::string, std::string>;

void expect_survivors_name_it(int victim, const std::string& also, Environment environment = {}) {
  environment["TESSERA_TIMEOUT_S"] = "600";  // longer than the test may take
  environment["VICTIM"] = std::to_string(victim);
  environment.emplace("DURING", "");
  const auto results =
      run_processes(kVictim, {.size = 3, .kill_rank = victim, .environment = environment});
  for (const ProcessResult& result : results) {
    if (result.rank == victim) {
      EXPECT_EQ(result.signal, 9) << result.to_text();
      continue;
    }
    EXPECT_TRUE(result.ok()) << result.to_text();
    EXPECT_TRUE(result.says("error: PeerError: rank " + std::to_string(result.rank) +
                            ": all_reduce (sum) of 2x3 float32 in group"))
        << result.to_text();
    EXPECT_TRUE(result.says("(ranks 0,1,2) failed")) << result.to_text();
    EXPECT_TRUE(result.says(also)) << result.to_text();
  }
}

TEST(Failure, AKilledRankEndsTheCollectiveOfTheOthers) {
  expect_survivors_name_it(1, "no sign of life from rank 1");
}

TEST(Failure, AKilledRankEndsASynchronousCallToo) {
  expect_survivors_name_it(1, "no sign of life from rank 1", {{"SYNC", "1"}});
}

/// Its first message fails at once, before it sent rank 2 the one that rank 2 waits for.
TEST(Failure, ARankThatWaitsForOneThatGaveUpIsNotTakenForDead) {
  expect_survivors_name_it(1, "no sign of life from rank 1",
                           {{"SYNC", "1"}, {"DURING", "rank 0 comes late"}});
}

TEST(Failure, ARankThatComputesMeanwhileIsNotTakenForDead) {
  expect_survivors_name_it(1, "no sign of life from rank 1", {{"DURING", "rank 2 computes"}});
}

TEST(Failure, KillingTheRankThatHostsTheStoreIsNoWorse) { expect_survivors_name_it(0, "failed"); }

const Scenario kStart("start", [] { say(error_of([] { process_world(); })); });

TEST(Failure, ARankThatNeverComesIsNamed) {
  const auto results = run_processes(
      kStart, {.size = 4, .absent = {1, 3}, .environment = {{"TESSERA_TIMEOUT_S", "3"}}});
  for (const ProcessResult& result : results) {
    EXPECT_TRUE(result.ok()) << result.to_text();
    EXPECT_TRUE(result.says("PeerError: rank " + std::to_string(result.rank) +
                            ": the start of world procs at 127.0.0.1:"))
        << result.to_text();
    EXPECT_TRUE(result.says("rank(s) 1,3 did not arrive within 3000 ms")) << result.to_text();
  }
}

TEST(Failure, AMissingStoreIsNamed) {
  const auto results = run_processes(
      kStart, {.size = 2, .absent = {0}, .environment = {{"TESSERA_TIMEOUT_S", "3"}}});
  ASSERT_EQ(results.size(), 1u);
  EXPECT_TRUE(
      results[0].says("PeerError: rank 1 of 2: waited for the store of rank 0 at 127.0.0.1"))
      << results[0].to_text();
}

const Scenario kTakenPort("taken_port", [] {
  auto squatter = own_store(/*host=*/true);
  say(error_of([] { process_world(); }));
});

TEST(Failure, ATakenPortIsTheCallersMistake) {
  const auto results = run_processes(kTakenPort, {.size = 1});
  EXPECT_TRUE(results[0].says("InvalidArgument: rank 0 cannot make the store at 127.0.0.1"))
      << results[0].to_text();
}

const Scenario kGroup("group", [] {
  auto world = process_world();
  if (world->rank() == 2) return;
  say(error_of([&] { world->group(everyone(*world)); }));
});

TEST(Failure, ARankThatDoesNotMakeTheGroupIsNamed) {
  const auto results =
      run_processes(kGroup, {.size = 3, .environment = {{"TESSERA_TIMEOUT_S", "2"}}});
  for (const ProcessResult& result : results) {
    EXPECT_TRUE(result.ok()) << result.to_text();
    if (result.rank == 2) continue;
    EXPECT_TRUE(result.says("rank(s) 2 did not arrive within 2000 ms")) << result.to_text();
  }
}

const Scenario kSkipped("skipped", [] {
  auto world = process_world();
  all_reduce(*world);
  if (world->rank() == 1) {
    std::this_thread::sleep_for(std::chrono::seconds(5));
    return;
  }
  say(error_of([&] { all_reduce(*world); }));
});

void expect_timeout(Environment environment) {
  environment["TESSERA_TIMEOUT_S"] = "2";
  const auto results = run_processes(kSkipped, {.size = 3, .environment = environment});
  for (const ProcessResult& result : results) {
    if (result.rank == 1) continue;
    EXPECT_TRUE(result.says("PeerError")) << result.to_text();
    EXPECT_TRUE(result.says("; alive, but not in this call: rank 1")) << result.to_text();
  }
}

TEST(Failure, ACallThatARankLeavesOutEndsAtTheTimeout) { expect_timeout({}); }

TEST(Failure, ASynchronousCallThatARankLeavesOutDoesToo) { expect_timeout({{"SYNC", "1"}}); }

/// A stopped process keeps its links and answers nothing. Rank 0 wakes it at the end.
const Scenario kStopped("stopped", [] {
  auto world = process_world();
  const c10::intrusive_ptr<c10d::Store> store = own_store(/*host=*/false);
  all_reduce(*world);
  if (world->rank() == 1) {
    store->set("pid", std::to_string(getpid()));
    std::raise(SIGSTOP);
    return;
  }
  say(error_of([&] { all_reduce(*world); }));
  if (world->rank() == 2) return store->set("rank 2 knows", "1");
  store->wait({"rank 2 knows"});
  kill(std::stoi(store->get_to_str("pid")), SIGCONT);
});

TEST(Failure, AStoppedRankIsToldFromAKilledOne) {
  const auto results =
      run_processes(kStopped, {.size = 3, .environment = {{"TESSERA_TIMEOUT_S", "2"}}});
  for (const ProcessResult& result : results) {
    if (result.rank == 1) continue;
    EXPECT_TRUE(result.says("no sign of life from rank 1 (stopped or unreachable"))
        << result.to_text();
  }
}

/// Rank 0 loses rank 1 in the middle of a call, before it packed all that rank 2 waits for, and
/// keeps its links. Rank 2 has nothing to do with rank 1 in this call.
const Scenario kGivesUp("gives_up", [] {
  auto world = process_world();
  auto store = own_store(/*host=*/false);
  all_reduce(*world);
  if (world->rank() == 1) {
    mark("kill me");
    std::this_thread::sleep_for(std::chrono::minutes(5));
  }
  constexpr int64_t kMany = 4 << 20;
  std::vector<int64_t> nothing = {0, 0, 0};
  std::vector<int64_t> from_rank_0 = {kMany, 0, 0};
  at::Tensor empty = at::empty({0});
  at::Tensor received = at::empty({kMany});
  c10d::AllToAllOptions options;
  options.asyncOp = false;
  say(error_of([&] {
    if (world->rank() == 2) {
      links_of(*world).alltoall_base(received, empty, from_rank_0, nothing, options)->wait();
    } else {
      Unpacked zeros;
      zeros.pack = [](int64_t, int64_t bytes, char* to) { std::memset(to, 0, size_t(bytes)); };
      zeros.splits = {0, kMany, kMany};
      zeros.meanwhile = [] {};
      all_to_all_packing(links_of(*world), empty, std::move(zeros), nothing, options)->wait();
    }
  }));
  if (world->rank() == 2) return store->set("rank 2 knows", std::vector<uint8_t>{1});
  store->wait({"rank 2 knows"});
});

TEST(Failure, ACallThatAPeerGaveUpEndsBeforeTheTimeout) {
  const auto results = run_processes(
      kGivesUp, {.size = 3, .kill_rank = 1, .environment = {{"TESSERA_TIMEOUT_S", "600"}}});
  EXPECT_TRUE(results[0].says("no sign of life from rank 1")) << results[0].to_text();
  EXPECT_TRUE(results[2].says("failed: rank 0 gave up on it: ")) << results[2].to_text();
  EXPECT_TRUE(results[2].says("no sign of life from rank 1")) << results[2].to_text();
}

const Scenario kReports("reports", [] {
  auto world = process_world();
  all_reduce(*world);
  say(error_of([&] {
    or_report(*world, [&] {
      if (world->rank() == 1) {
        std::this_thread::sleep_for(std::chrono::milliseconds(300));
        throw InvalidArgument("the disk of rank 1 is full");
      }
      all_reduce(*world);
    });
  }));
});

TEST(Failure, TheErrorOfTheOthersNamesTheRankThatFailedFirst) {
  const auto results = run_processes(kReports, {.size = 3});
  for (const ProcessResult& result : results) {
    EXPECT_TRUE(result.ok()) << result.to_text();
    EXPECT_TRUE(result.says(result.rank == 1 ? "error: InvalidArgument: the disk of rank 1 is full"
                                             : "rank 1 failed first: the disk of rank 1 is full"))
        << result.to_text();
  }
}

const Scenario kReportsAnything("reports anything", [] {
  auto world = process_world();
  all_reduce(*world);
  try {
    or_report(*world, [&] {
      if (world->rank() == 1) throw 42;
      all_reduce(*world);
    });
  } catch (const std::exception& e) {
    say(e.what());
  } catch (int thrown) {
    say(join_text("threw ", thrown));
  }
});

TEST(Failure, AnExceptionThatIsNotAStdExceptionIsReportedToo) {
  for (const ProcessResult& result : run_processes(kReportsAnything, {.size = 2})) {
    EXPECT_TRUE(result.ok()) << result.to_text();
    EXPECT_TRUE(result.says(result.rank == 1 ? "threw 42"
                                             : "rank 1 failed first: an exception that is not"))
        << result.to_text();
  }
}

/// An uncaught exception ends the process by std::terminate.
const Scenario kUncaught("uncaught", [] {
  auto world = process_world();
  all_reduce(*world);
  if (world->rank() == 1) {
    std::thread([] { throw InvalidArgument("no such file: weights.bin"); }).join();
  }
  say(error_of([&] { all_reduce(*world); }));
});

TEST(Failure, AnExceptionThatNobodyCatchesReachesTheOthers) {
  const auto results = run_processes(kUncaught, {.size = 3});
  for (const ProcessResult& result : results) {
    if (result.rank == 1) {
      EXPECT_EQ(result.signal, SIGABRT) << result.to_text();
      continue;
    }
    EXPECT_TRUE(result.ok()) << result.to_text();
    EXPECT_TRUE(result.says("rank 1 failed first: no such file: weights.bin")) << result.to_text();
  }
}

/// Without a world at hand, deep inside a library.
const Scenario kReportsFromAfar("reports_from_afar", [] {
  report_failure("no rank receives this: there is no world yet");
  auto world = process_world();
  all_reduce(*world);
  if (world->rank() == 1) report_failure("rank 1 is out of disk");
  say(error_of([&] { all_reduce(*world); }));
});

TEST(Failure, AReportNeedsNoWorldAtHand) {
  const auto results = run_processes(kReportsFromAfar, {.size = 2});
  EXPECT_TRUE(results[0].says("rank 1 failed first: rank 1 is out of disk"))
      << results[0].to_text();
  EXPECT_TRUE(results[1].says("error: PeerError")) << results[1].to_text();
}

/// A thread of the failing rank itself waits for peers that will never come.
const Scenario kOwnThread("own_thread", [] {
  auto world = process_world();
  all_reduce(*world);
  if (world->rank() == 0) {
    std::this_thread::sleep_for(std::chrono::seconds(4));
    return;
  }
  std::thread waits([&] { say(error_of([&] { all_reduce(*world); })); });
  std::this_thread::sleep_for(std::chrono::milliseconds(200));
  report_failure(*world, "no more memory");
  waits.join();
});

TEST(Failure, ARankThatReportsAFailureDoesNotWaitAnyMoreItself) {
  for (const Environment& kind : {Environment{}, Environment{{"SYNC", "1"}}}) {
    Environment environment = kind;
    environment["TESSERA_TIMEOUT_S"] = "600";  // longer than the test may take
    const auto results = run_processes(kOwnThread, {.size = 2, .environment = environment});
    EXPECT_TRUE(results[1].says("failed: this rank closed its links")) << results[1].to_text();
  }
}

void expect_found(const Mismatch& mismatch, RankWorld& world) {
  const std::string error = error_of([&] { mismatch.call(world.rank(), links_of(world)); });
  EXPECT_TRUE(error.starts_with("PeerError")) << mismatch.name << ": " << error;
  EXPECT_NE(error.find(mismatch.difference), std::string::npos) << mismatch.name << ": " << error;
}

/// Each mismatch in a world of its own, because after one a world is of no use; side by side,
/// because finding one takes five seconds.
const Scenario kMismatches("mismatches", [] {
  auto hosts_store = process_world();
  const auto all = mismatches();
  std::vector<std::shared_ptr<RankWorld>> worlds;
  for (const Mismatch& mismatch : all) {
    worlds.push_back(make_process_world({.rank = hosts_store->rank(),
                                         .size = 3,
                                         .store = own_store(/*host=*/false),
                                         .name = mismatch.name,
                                         .timeout = std::chrono::seconds(600)}));
    all_reduce(*worlds.back());
  }
  std::vector<std::thread> threads;
  for (size_t i = 0; i < all.size(); ++i) {
    threads.emplace_back([&, i] { expect_found(all[i], *worlds[i]); });
  }
  for (auto& thread : threads) thread.join();
});

TEST(Failure, CallsThatDoNotMatchAreFoundBeforeTheTimeoutWithoutCheckedMode) {
  EXPECT_EQ(failures(run_processes(kMismatches, {.size = 3})), "");
}

/// Point to point: the sizes differ, so the message must not be taken.
const Scenario kMessage("message", [] {
  auto world = process_world();
  auto& links = links_of(*world);
  Tensors t = {at::zeros({std::stoi(std::getenv(world->rank() == 0 ? "SENT" : "EXPECTED"))})};
  say(error_of([&] {
    if (world->rank() == 0) {
      links.send(t, 1, 3)->wait();
    } else {
      links.recv(t, 0, 3)->wait();
    }
  }));
});

TEST(Failure, AMessageOfAnotherSizeIsNotTaken) {
  for (const auto& [sent, expected] : {std::pair("8", "4"), std::pair("4", "8")}) {
    const auto results = run_processes(
        kMessage,
        {.size = 2,
         .environment = {{"TESSERA_TIMEOUT_S", "2"}, {"SENT", sent}, {"EXPECTED", expected}}});
    EXPECT_EQ(failures(results), "");
    EXPECT_TRUE(results[1].says(std::string("PeerError: rank 1: recv from rank 0 with tag 3 of ") +
                                expected + " float32"))
        << results[1].to_text();
  }
}

}  // namespace failure_test
}  // namespace tessera::comm
