// Who belongs to a job, over a store in memory.
#include "tessera/comm/job_check.h"

#include <gtest/gtest.h>

#include <optional>
#include <torch/csrc/distributed/c10d/HashStore.hpp>

#include "tests/support/processes.h"

namespace tessera::comm {
namespace job_check_test {

using namespace std::chrono_literals;

class JobCheck : public ::testing::Test {
 protected:
  /// How `mine` is received: "" or the error. What it posts for others goes to posted_.
  std::string meet(const JobMember& mine) {
    return testing::error_of(
        [&] { check_job(*store_, mine, [&](const std::string& why) { posted_ = why; }); });
  }

  static JobMember member(int rank, int size = 2, std::string job = "a") {
    return {rank, size, std::move(job), "node0:1", 200ms};
  }

  static bool says(const std::string& error, std::string_view text) {
    return error.find(text) != std::string::npos;
  }

  /// As another process would have taken the rank.
  void take(int rank) {
    store_->set("rank/" + std::to_string(rank), "process 1 on elsewhere\nthere");
  }

  c10::intrusive_ptr<c10d::Store> store_ = c10::make_intrusive<c10d::HashStore>();
  std::optional<std::string> posted_;
};

TEST_F(JobCheck, RanksOfOneJobAreWelcome) {
  EXPECT_EQ(meet(member(0)), "");
  EXPECT_EQ(meet(member(1)), "");
  EXPECT_EQ(meet(member(1)), "");  // the same process, in a world that it opens again
  EXPECT_FALSE(posted_);
}

TEST_F(JobCheck, AnotherJobIsRefusedAndDoesNotDisturbThisOne) {
  EXPECT_EQ(meet(member(0)), "");
  for (const int rank : {0, 1}) {
    const std::string error = meet(member(rank, 2, "b"));
    EXPECT_TRUE(says(error, "InvalidArgument: rank " + std::to_string(rank) +
                                " found the store of another job at node0:1: that job is \"a\", "
                                "this one \"b\""))
        << error;
  }
  EXPECT_FALSE(posted_);
}

TEST_F(JobCheck, AnotherSizeIsNamedToAllIfNoOtherComesInItsPlace) {
  EXPECT_EQ(meet(member(0)), "");
  EXPECT_TRUE(says(meet(member(1, 3)), "WORLD_SIZE is 3 on rank 1 but 2 on rank 0"));
  ASSERT_TRUE(posted_);
  EXPECT_TRUE(says(*posted_, "WORLD_SIZE is 3 on rank 1 but 2 on rank 0"));
}

TEST_F(JobCheck, AStrangerOfAnotherSizeDoesNotDisturbACompleteJob) {
  EXPECT_EQ(meet(member(0)), "");
  take(1);
  EXPECT_NE(meet(member(1, 3)), "");
  EXPECT_NE(meet(member(2, 3)), "");  // a place that the job does not have
  EXPECT_FALSE(posted_);
}

TEST_F(JobCheck, ARankThatIsTakenIsNamedToAllUnlessTheJobIsComplete) {
  EXPECT_EQ(meet(member(0, 3)), "");
  take(1);
  EXPECT_TRUE(
      says(meet(member(1, 3)),
           "RANK=1 was given to two processes of the job at node0:1: process 1 on elsewhere "
           "and process "));
  EXPECT_TRUE(posted_);
  posted_.reset();
  take(2);
  EXPECT_NE(meet(member(1, 3)), "");
  EXPECT_FALSE(posted_);
}

TEST_F(JobCheck, ARankZeroThatDoesNotComeIsNamed) {
  EXPECT_TRUE(says(meet(member(1)), "PeerError: rank 1"));
  EXPECT_TRUE(says(meet(member(1)), "rank 0 did not arrive within 200 ms"));
}

TEST_F(JobCheck, AnEntryOfAnotherProgramIsNamed) {
  store_->set("job", "hello");
  EXPECT_TRUE(says(meet(member(1)), "another program's entry"));
}

}  // namespace job_check_test
}  // namespace tessera::comm
