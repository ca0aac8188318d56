// Recorders, call sites and expectations, over thread ranks and over a scripted backend.
#include "tessera/observe/recorder.h"

#include <gtest/gtest.h>

#include <chrono>
#include <thread>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include "tessera/base/errors.h"
#include "tessera/comm/threads.h"
#include "tessera/observe/call_site.h"
#include "tessera/observe/expect.h"
#include "tests/observe/tapped.h"
#include "tests/support/processes.h"

namespace tessera::comm {
namespace recorder_test {

using testing::error_of;
using Tensors = std::vector<at::Tensor>;

TEST(Recorder, SeesWhatWasCalledWithWhatAndWhoAsked) {
  Tapped tapped({{0, 1}, 0, "g", "w"}, 3);
  Recorder recorder(tapped.observers);
  tapped.all_gather({.op = "aten::mm", .axis = "tp", .implicit = true});
  const CommEvent event = recorder.events().at(0);
  EXPECT_EQ(event.op, CommOp::all_gather);
  EXPECT_EQ(event.group->name, "g");
  EXPECT_EQ(event.group->ranks, (std::vector<int>{0, 1}));
  EXPECT_EQ(event.site, "aten::mm");
  EXPECT_EQ(event.axis, "tp");
  EXPECT_TRUE(event.implicit);
  EXPECT_EQ(event.shapes_in, (std::vector<std::vector<int64_t>>{{2, 4}}));
  EXPECT_EQ(event.shapes_out, (std::vector<std::vector<int64_t>>{{4, 4}}));
  EXPECT_EQ(event.dtype, c10::ScalarType::Float);
  EXPECT_EQ(event.bytes_in, 32);
  EXPECT_EQ(event.bytes(), 64);
  EXPECT_GE(event.duration.count(), 0);
  EXPECT_FALSE(event.failed);
  EXPECT_EQ(event.to_text(),
            "all_gather on tp 2x4 -> 4x4 float32, 64 B, implicit in aten::mm, group g (ranks 0,1)");
}

TEST(Recorder, CallsWithoutASiteAreTheUsers) {
  Tapped tapped;
  Recorder recorder(tapped.observers);
  tapped.all_reduce();
  EXPECT_EQ(recorder.events().at(0).site, "user");
  EXPECT_FALSE(recorder.events().at(0).implicit);
  EXPECT_EQ(recorder.events().at(0).shapes_out, recorder.events().at(0).shapes_in);
}

TEST(Recorder, SitesNestAndTheInnerFillsFromTheOuter) {
  CallSite outer({.op = "aten::mm", .note = "S0 -> R", .implicit = true});
  {
    CallSite inner({.axis = "tp"});
    EXPECT_EQ(CallSite::current().op, "aten::mm");
    EXPECT_EQ(CallSite::current().axis, "tp");
    EXPECT_EQ(CallSite::current().note, "S0 -> R");
    EXPECT_TRUE(CallSite::current().implicit);
  }
  EXPECT_EQ(CallSite::current().axis, "");
}

TEST(Recorder, SeveralListenAtATimeAndEachFromItsOwnStart) {
  Tapped tapped;
  Recorder outer(tapped.observers);
  tapped.all_reduce();
  {
    Recorder inner(tapped.observers);
    tapped.all_reduce();
    EXPECT_EQ(inner.count(), 1);
  }
  tapped.all_reduce();
  EXPECT_EQ(outer.count(), 3);
  outer.stop();
  tapped.all_reduce();
  EXPECT_EQ(outer.count(), 3);
  outer.clear();
  EXPECT_EQ(outer.count(), 0);
}

TEST(Recorder, CountsByOpByAxisAndByBoth) {
  Tapped tapped;
  Recorder recorder(tapped.observers);
  tapped.all_gather({.axis = "tp"});
  tapped.all_gather({.axis = "tp", .implicit = true});
  tapped.all_gather({.axis = "dp"});
  tapped.all_reduce({.axis = "dp"});
  EXPECT_EQ(recorder.count(), 4);
  EXPECT_EQ(recorder.count(CommOp::all_gather), 3);
  EXPECT_EQ(recorder.count_on("dp"), 2);
  EXPECT_EQ(recorder.count(CommOp::all_gather, "tp"), 2);
  EXPECT_EQ(recorder.count_implicit(), 1);
  EXPECT_EQ(recorder.bytes(), 3 * 64 + 24);
  EXPECT_EQ(recorder.by_op(),
            (std::map<CommOp, int>{{CommOp::all_reduce, 1}, {CommOp::all_gather, 3}}));
  EXPECT_EQ(recorder.by_axis(), (std::map<std::string, int>{{"dp", 2}, {"tp", 2}}));
}

TEST(Recorder, AnEventIsInFlightUntilItsWait) {
  Tapped tapped;
  Recorder recorder(tapped.observers);
  Tensors t = {at::ones({1})};
  auto work = tapped.outer->allreduce(t);
  EXPECT_LT(recorder.events().at(0).duration.count(), 0);
  work->wait();
  const auto duration = recorder.events().at(0).duration;
  EXPECT_GE(duration.count(), 0);
  work->wait();  // again: the first end counts
  EXPECT_EQ(recorder.events().at(0).duration, duration);
}

TEST(Recorder, TellsTheTimeThatComputationDidNotHide) {
  constexpr auto kPause = std::chrono::milliseconds(3);
  Tapped tapped;
  tapped.inner->on_wait = [=] { std::this_thread::sleep_for(kPause); };
  Recorder recorder(tapped.observers);
  Tensors t = {at::ones({1})};
  auto work = tapped.outer->allreduce(t);
  std::this_thread::sleep_for(kPause);  // computation
  work->wait();
  const CommEvent event = recorder.events().at(0);
  EXPECT_GE(event.exposed, kPause);
  EXPECT_GE(event.duration - event.exposed, kPause);
  EXPECT_EQ(recorder.exposed(), event.exposed);
}

TEST(Recorder, AFailedCallIsRecordedAsSuch) {
  Tapped tapped;
  tapped.inner->on_wait = [] { throw std::runtime_error("gone"); };
  Recorder recorder(tapped.observers);
  EXPECT_THROW(tapped.all_reduce(), PeerError);
  EXPECT_TRUE(recorder.events().at(0).failed);
}

TEST(Recorder, PrintsATable) {
  Tapped tapped({{0, 1}, 0, "g", "w"}, 3);
  Recorder recorder(tapped.observers);
  tapped.all_gather({.op = "aten::mm", .axis = "tp", .implicit = true});
  const std::string text = recorder.to_text();
  for (const char* part :
       {"op          axis  ranks", "all_gather  tp    0,1", "2x4", "4x4", "float32", "64 B",
        "aten::mm (implicit)", "rank 3: 1 calls, 64 B, 1 implicit"}) {
    EXPECT_NE(text.find(part), std::string::npos) << part << " is not in\n" << text;
  }
}

TEST(Recorder, EachThreadRankHasItsOwnAndSeesCallsThroughTheProcessGroupToo) {
  run_ranks(3, [](int rank) {
    auto world = current_world();
    const auto group = world->group(std::vector<int>{0, 1, 2});
    Recorder recorder(*world);
    Tensors t = {at::ones({5})};
    group->process_group()->allreduce(t)->wait();
    EXPECT_EQ(recorder.rank(), rank);
    EXPECT_EQ(expect_comm(recorder, "1 all_reduce"), "");
  });
}

TEST(ExpectComm, ListsAllThatMayHappen) {
  Tapped tapped;
  Recorder recorder(tapped.observers);
  EXPECT_EQ(expect_comm(recorder, "nothing"), "");
  tapped.all_gather({.axis = "tp"});
  tapped.all_gather({.axis = "tp"});
  tapped.all_reduce({.axis = "dp+tp"});
  EXPECT_EQ(expect_comm(recorder, "2 all_gather on tp, 1 all_reduce, 0 implicit"), "");
  EXPECT_EQ(expect_comm(recorder, "2 all_gather, 1 all_reduce on dp+tp"), "");
  EXPECT_EQ(expect_comm(recorder, "2 all_gather on tp, 0 all_gather, 1 all_reduce"), "");
  EXPECT_EQ(expect_comm(recorder, "2 all_gather, ..."), "");
  EXPECT_EQ(expect_comm(recorder, "0 implicit, ..."), "");
}

TEST(ExpectComm, SaysWhatDiffers) {
  Tapped tapped({{0, 1}, 0, "g", "w"}, 2);
  Recorder recorder(tapped.observers);
  tapped.all_gather({.op = "aten::mm", .axis = "tp", .implicit = true});
  tapped.all_reduce();
  EXPECT_EQ(
      expect_comm(recorder, "2 all_gather on tp, 0 implicit"),
      "communication of rank 2 is not \"2 all_gather on tp, 0 implicit\":\n"
      "  not expected: all_reduce 2x3 -> 2x3 float32, 24 B, from user, group g (ranks 0,1)\n"
      "  all_gather on tp: expected 2, found 1\n"
      "  implicit: expected 0, found 1\n"
      "all 2 events:\n"
      "  all_gather on tp 2x4 -> 4x4 float32, 64 B, implicit in aten::mm, group g (ranks 0,1)\n"
      "  all_reduce 2x3 -> 2x3 float32, 24 B, from user, group g (ranks 0,1)\n");
  EXPECT_NE(expect_comm(recorder, "nothing"), "");
  EXPECT_NE(expect_comm(recorder, "1 all_gather on dp, 1 all_reduce"), "");
  EXPECT_THROW(require_comm(recorder, "nothing"), Error);
  EXPECT_NO_THROW(require_comm(recorder, "1 all_gather, 1 all_reduce, 1 implicit"));
}

TEST(ExpectComm, RejectsTextThatItCannotRead) {
  Tapped tapped;
  Recorder recorder(tapped.observers);
  for (const char* text :
       {"", "all_gather", "2 allgather", "2 all_gather on", "2 all_gather 1 all_reduce",
        "nothing else", "2 all_gather,", "1 all_gather on tp+", ".."}) {
    EXPECT_TRUE(error_of([&] { expect_comm(recorder, text); }).starts_with("InvalidArgument"))
        << text;
  }
}

}  // namespace recorder_test
}  // namespace tessera::comm
