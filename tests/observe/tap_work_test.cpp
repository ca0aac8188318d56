// A Work that failed says so without asking other ranks.
#include "tessera/observe/tap_work.h"

#include <gtest/gtest.h>

#include <chrono>
#include <torch/csrc/distributed/c10d/HashStore.hpp>

#include "tessera/base/errors.h"
#include "tessera/liveness/peer_diagnostics.h"
#include "tests/observe/tapped.h"
#include "tests/support/processes.h"

namespace tessera::comm {
namespace tap_work_test {

using Clock = std::chrono::steady_clock;
using namespace std::chrono_literals;

std::string text_of_error(const std::exception_ptr& error) {
  return testing::error_of([&] {
    if (error) std::rethrow_exception(error);
  });
}

struct FailedCall {
  FailedCall() {
    tapped.inner->error = std::make_exception_ptr(std::runtime_error("the link broke"));
    tapped.inner->on_wait = [this] { std::rethrow_exception(tapped.inner->error); };
    // Rank 1 of the group never answers, so asking it takes seconds.
    tapped.observers.state()->board =
        std::make_shared<PeerDiagnostics>(c10::make_intrusive<c10d::HashStore>(), 0);
    std::vector<at::Tensor> t = {at::ones({2})};
    work = tapped.outer->allreduce(t);
  }

  Tapped tapped;
  c10::intrusive_ptr<c10d::Work> work;
};

TEST(TapWork, AskingForTheExceptionAsksNoOtherRank) {
  const FailedCall call;
  const auto begin = Clock::now();
  const std::string error = text_of_error(call.work->exception());
  EXPECT_LT(Clock::now() - begin, 1s);
  EXPECT_TRUE(error.starts_with("PeerError: rank 0: all_reduce")) << error;
  EXPECT_NE(error.find("the link broke"), std::string::npos) << error;
}

TEST(TapWork, TheExceptionIsTheOneThatWaitThrew) {
  const FailedCall call;
  const std::string thrown = testing::error_of([&] { call.work->wait(); });
  EXPECT_NE(thrown.find("no sign of life from rank 1"), std::string::npos) << thrown;
  EXPECT_EQ(text_of_error(call.work->exception()), thrown);
}

}  // namespace tap_work_test
}  // namespace tessera::comm
