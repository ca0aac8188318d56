// What a tap does to a backend's errors.
#include "tessera/observe/tap.h"

#include <gtest/gtest.h>

#include "tessera/base/errors.h"
#include "tessera/observe/recorder.h"
#include "tests/observe/tapped.h"
#include "tests/support/processes.h"

namespace tessera::comm {
namespace tap_test {

using testing::error_of;
using Tensors = std::vector<at::Tensor>;

/// Ranks 4 and 7, seen from 4.
struct TappedPair : Tapped {
  TappedPair() : Tapped({{4, 7}, 0, "w.g[4,7]", "w"}) {}
};

constexpr const char* kCall =
    "rank 4: all_reduce (sum) of 2x3 float32 in group w.g[4,7] (ranks 4,7)";

TEST(Tap, ALinkThatFailsInWaitIsAPeerErrorThatNamesRankCallAndGroup) {
  TappedPair tapped;
  tapped.inner->on_wait = [] { throw std::runtime_error("Connection closed by peer"); };
  EXPECT_EQ(error_of([&] { tapped.all_reduce(); }),
            std::string("PeerError: ") + kCall + " failed: Connection closed by peer");
}

TEST(Tap, ALinkThatFailsAtTheCallIsToo) {
  TappedPair tapped;
  tapped.inner->on_call = [] { C10_THROW_ERROR(DistBackendError, "NCCL communicator aborted"); };
  EXPECT_EQ(error_of([&] { tapped.all_reduce(); }),
            std::string("PeerError: ") + kCall + " failed: NCCL communicator aborted");
}

TEST(Tap, ATimeoutIsAPeerError) {
  TappedPair tapped;
  tapped.inner->on_wait = [] { TORCH_CHECK(false, "Timed out waiting 10ms"); };
  EXPECT_EQ(error_of([&] { tapped.all_reduce(); }),
            std::string("PeerError: ") + kCall + " failed: Timed out waiting 10ms");
}

TEST(Tap, BadArgumentsAreTheCallersMistake) {
  TappedPair tapped;
  tapped.inner->on_call = [] { TORCH_CHECK(false, "invalid tensor type"); };
  EXPECT_EQ(error_of([&] { tapped.all_reduce(); }),
            std::string("InvalidArgument: ") + kCall + ": invalid tensor type");
}

TEST(Tap, ViewsWhoseBytesAreNotTheirValuesAreRefused) {
  TappedPair tapped;
  const at::Tensor conjugated = at::ones({2, 3}, at::kComplexFloat).conj();
  for (const at::Tensor& view : {conjugated, at::_neg_view(at::ones({2, 3}))}) {
    Tensors t = {view};
    const std::string error = error_of([&] { tapped.outer->allreduce(t); });
    EXPECT_TRUE(error.starts_with("InvalidArgument: rank 4: all_reduce")) << error;
    EXPECT_NE(error.find("resolve_conj"), std::string::npos) << error;
    EXPECT_NE(error_of([&] { tapped.outer->send(t, 1, 0); }).find("resolve"), std::string::npos);
    t = {view.resolve_conj().resolve_neg()};
    tapped.outer->allreduce(t)->wait();
  }
  EXPECT_EQ(tapped.inner->calls, 2);
}

TEST(Tap, WhatTheBackendCannotDoIsNotSupported) {
  TappedPair tapped;
  Tensors t = {at::ones({2})};
  const auto error = error_of([&] { tapped.outer->reduce(t)->wait(); });
  EXPECT_TRUE(
      error.starts_with("NotSupported: rank 4: reduce (sum) to rank 4 of 2 float32 in group"))
      << error;
}

TEST(Tap, OwnErrorsPassUnchanged) {
  TappedPair tapped;
  tapped.inner->on_wait = [] { throw InvalidArgument("as it was"); };
  EXPECT_EQ(error_of([&] { tapped.all_reduce(); }), "InvalidArgument: as it was");
}

TEST(Tap, AnErrorNamesRootsPeersAndTagsByWorldRank) {
  TappedPair tapped;
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
  TappedPair tapped;
  tapped.inner->returns_work = false;
  Recorder recorder(tapped.observers);
  Tensors t = {at::ones({2})};
  for (const bool async : {false, true}) {  // NCCL returns none for blocking calls
    c10d::AllreduceOptions options;
    options.asyncOp = async;
    const auto work = tapped.outer->allreduce(t, options);
    ASSERT_TRUE(work.defined());
    EXPECT_TRUE(work->isCompleted());
    EXPECT_TRUE(work->wait());
    EXPECT_GE(recorder.events().back().duration.count(), 0);
  }
}

TEST(Tap, AProcessGroupMayOutliveItsWorld) {
  auto tapped = std::make_unique<TappedPair>();
  auto outer = tapped->outer;
  tapped.reset();
  Tensors t = {at::ones({2})};
  outer->allreduce(t)->wait();
}

TEST(Tap, AFutureHasTheSameError) {
  TappedPair tapped;
  auto raw = c10::make_intrusive<c10::ivalue::Future>(c10::TensorType::get());
  tapped.inner->future = raw;
  Tensors t = {at::ones({2, 3})};
  const auto future = tapped.outer->allreduce(t)->getFuture();
  EXPECT_FALSE(future->completed());
  raw->setError(std::make_exception_ptr(std::runtime_error("Connection reset")));
  EXPECT_EQ(error_of([&] { future->waitAndThrow(); }),
            std::string("PeerError: ") + kCall + " failed: Connection reset");
}

TEST(Tap, AFutureHasTheSameValue) {
  TappedPair tapped;
  auto raw = c10::make_intrusive<c10::ivalue::Future>(c10::TensorType::get());
  tapped.inner->future = raw;
  Tensors t = {at::ones({2, 3})};
  const auto future = tapped.outer->allreduce(t)->getFuture();
  raw->markCompleted(at::ones({5}));
  EXPECT_EQ(future->value().toTensor().numel(), 5);
}

}  // namespace tap_test
}  // namespace tessera::comm
