// What a tap does to a backend's errors, and what it costs.
#include "tessera/comm/tap.h"

#include <gtest/gtest.h>

#include <chrono>

#include "tessera/base/errors.h"
#include "tessera/comm/recorder.h"
#include "tests/comm/scripted_backend.h"
#include "tests/support/processes.h"

namespace tessera::comm {
namespace {

using testing::error_of;
using Tensors = std::vector<at::Tensor>;

struct Tapped {
  Observers observers;
  c10::intrusive_ptr<ScriptedBackend> inner = c10::make_intrusive<ScriptedBackend>();
  c10::intrusive_ptr<c10d::Backend> outer =
      tap(inner, {.ranks = {4, 7}, .index = 0, .name = "w.g[4,7]", .world_name = "w"}, observers);

  void all_reduce() {
    Tensors t = {at::ones({2, 3})};
    outer->allreduce(t)->wait();
  }
};

constexpr const char* kCall =
    "rank 4: all_reduce (sum) of 2x3 float32 in group w.g[4,7] (ranks 4,7)";

TEST(Tap, ALinkThatFailsInWaitIsAPeerErrorThatNamesRankCallAndGroup) {
  Tapped tapped;
  tapped.inner->on_wait = [] { throw std::runtime_error("Connection closed by peer"); };
  EXPECT_EQ(error_of([&] { tapped.all_reduce(); }),
            std::string("PeerError: ") + kCall + " failed: Connection closed by peer");
}

TEST(Tap, ALinkThatFailsAtTheCallIsToo) {
  Tapped tapped;
  tapped.inner->on_call = [] { C10_THROW_ERROR(DistBackendError, "NCCL communicator aborted"); };
  EXPECT_EQ(error_of([&] { tapped.all_reduce(); }),
            std::string("PeerError: ") + kCall + " failed: NCCL communicator aborted");
}

TEST(Tap, ATimeoutIsAPeerError) {
  Tapped tapped;
  tapped.inner->on_wait = [] { TORCH_CHECK(false, "Timed out waiting 10ms"); };
  EXPECT_EQ(error_of([&] { tapped.all_reduce(); }),
            std::string("PeerError: ") + kCall + " failed: Timed out waiting 10ms");
}

TEST(Tap, BadArgumentsAreTheCallersMistake) {
  Tapped tapped;
  tapped.inner->on_call = [] { TORCH_CHECK(false, "invalid tensor type"); };
  EXPECT_EQ(error_of([&] { tapped.all_reduce(); }),
            std::string("InvalidArgument: ") + kCall + ": invalid tensor type");
}

TEST(Tap, WhatTheBackendCannotDoIsNotSupported) {
  Tapped tapped;
  Tensors t = {at::ones({2})};
  const auto error = error_of([&] { tapped.outer->reduce(t)->wait(); });
  EXPECT_TRUE(
      error.starts_with("NotSupported: rank 4: reduce (sum) to rank 4 of 2 float32 in group"))
      << error;
}

TEST(Tap, OwnErrorsPassUnchanged) {
  Tapped tapped;
  tapped.inner->on_wait = [] { throw InvalidArgument("as it was"); };
  EXPECT_EQ(error_of([&] { tapped.all_reduce(); }), "InvalidArgument: as it was");
}

TEST(Tap, AnErrorNamesRootsPeersAndTagsByWorldRank) {
  Tapped tapped;
  tapped.inner->on_wait = [] { throw std::runtime_error("gone"); };
  Tensors t = {at::ones({2}, at::kLong)};
  c10d::BroadcastOptions from_second;
  from_second.rootRank = 1;
  EXPECT_EQ(error_of([&] { tapped.outer->broadcast(t, from_second)->wait(); }),
            "PeerError: rank 4: broadcast from rank 7 of 2 int64 in group w.g[4,7] (ranks 4,7) "
            "failed: gone");
  EXPECT_EQ(error_of([&] { tapped.outer->send(t, 1, 9)->wait(); }),
            "PeerError: rank 4: send to rank 7 with tag 9 of 2 int64 in group w.g[4,7] (ranks 4,7) "
            "failed: gone");
}

TEST(Tap, ABackendMayReturnNoWork) {
  Tapped tapped;
  tapped.inner->returns_work = false;
  Recorder recorder(tapped.observers);
  EXPECT_FALSE(tapped.outer->barrier(c10d::BarrierOptions()).defined());
  EXPECT_GE(recorder.events().at(0).duration.count(), 0);
}

TEST(Tap, AProcessGroupMayOutliveItsWorld) {
  auto tapped = std::make_unique<Tapped>();
  auto outer = tapped->outer;
  tapped.reset();
  Tensors t = {at::ones({2})};
  outer->allreduce(t)->wait();
}

TEST(Tap, IsAsGoodAsFreeWhenNobodyListens) {
  Tapped tapped;
  Tensors t = {at::ones({4, 4})};
  const auto time_of = [&](c10d::Backend& backend) {
    constexpr int kCalls = 2000;
    double best = 1e9;
    for (int round = 0; round < 30; ++round) {  // the least of many: the machine may be busy
      const auto begin = std::chrono::steady_clock::now();
      for (int i = 0; i < kCalls; ++i) backend.allreduce(t, c10d::AllreduceOptions())->wait();
      const std::chrono::duration<double, std::nano> took =
          std::chrono::steady_clock::now() - begin;
      best = std::min(best, took.count() / kCalls);
    }
    return best;
  };
  const double bare = time_of(*tapped.inner);
  const double with_tap = time_of(*tapped.outer);
  RecordProperty("bare_ns", std::to_string(bare));
  RecordProperty("tapped_ns", std::to_string(with_tap));
  std::cout << "tap: " << with_tap - bare << " ns over " << bare << " ns\n";
  EXPECT_LT(with_tap - bare, 1000);  // sanitizers and debug builds included; 100 ns is usual
}

}  // namespace
}  // namespace tessera::comm
