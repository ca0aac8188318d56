// How a job of `tessera launch` ends: by a rank that fails, by signals, by itself.
#include <gtest/gtest.h>

#include "tests/cli/launched.h"

namespace tessera::test {
namespace launch_end_test {

TEST(CliLaunchEnd, TheFirstRankThatFailsEndsTheJobWithItsCodeAndLastLines) {
  const Folder folder;
  const auto script =
      folder.script("echo $$ >> " + folder.file("pids") + "\n" +
                    "if [ $RANK = 1 ]; then while [ $(wc -l < " + folder.file("pids") +
                    ") -lt 3 ]; do sleep 0.05; done; for i in $(seq 30); do echo line $i; done; "
                    "echo the disk is full >&2; exit 42; fi\nexec sleep 1000");
  const CliResult result = launch({"-n", "3", script});
  EXPECT_EQ(result.exit_code, 42);
  EXPECT_TRUE(holds(result.err, "ended with exit code 42; its last lines:")) << result.err;
  EXPECT_TRUE(holds(result.err, "  [1] line 30\n")) << result.err;
  EXPECT_TRUE(holds(result.err, "  [1] the disk is full\n")) << result.err;
  EXPECT_FALSE(holds(result.err, "  [1] line 3\n")) << result.err;
  EXPECT_TRUE(holds(result.err, "ending the other 2 ranks")) << result.err;
  EXPECT_TRUE(holds(result.err, "the others: rank 0 SIGTERM, rank 2 SIGTERM\n")) << result.err;
  EXPECT_TRUE(all_end(folder.file("pids")));
}

/// Its pipes close a moment before it ends: wherever in its loop the launcher is then, it sees the
/// exit code. Several times, since only some moments are unlucky.
TEST(CliLaunchEnd, ARankThatFailsAtTheVeryEndIsSeen) {
  for (int i = 0; i < 8; ++i) {
    const CliResult result = launch({"-n", "1", "sh", "-c", "exec >&- 2>&-; exit 3"});
    ASSERT_EQ(result.exit_code, 3) << result.err;
    ASSERT_TRUE(holds(result.err, "ended with exit code 3")) << result.err;
  }
}

TEST(CliLaunchEnd, AKilledRankIsNamedWithItsSignal) {
  const Folder folder;
  const auto script = folder.script("[ $RANK = 1 ] && kill -9 $$\nexec sleep 1000");
  const CliResult result = launch({"-n", "2", script});
  EXPECT_EQ(result.exit_code, 128 + SIGKILL);
  EXPECT_TRUE(holds(result.err, "rank 1 ")) << result.err;
  EXPECT_TRUE(holds(result.err, "ended with SIGKILL; it printed nothing")) << result.err;
}

TEST(CliLaunchEnd, ARankThatDoesNotEndIsKilledAfterTheGraceTime) {
  const Folder folder;
  const auto script =
      folder.script("trap 'echo I stay' TERM\necho $$ >> " + folder.file("pids") + "\n" +
                    "if [ $RANK = 0 ]; then while [ $(wc -l < " + folder.file("pids") +
                    ") -lt 2 ]; do sleep 0.05; done; exit 1; fi\nwhile true; do sleep 0.05; done");
  const CliResult result = launch({"-n", "2", "--grace", "0.3", script});
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_TRUE(holds(result.out, "[1] I stay")) << result.out;
  EXPECT_TRUE(holds(result.err, "killing 1 rank that did not end in time")) << result.err;
  EXPECT_TRUE(all_end(folder.file("pids")));
}

TEST(CliLaunchEnd, OneThatIsDoneEarlyLeavesTheOthersAlone) {
  const Folder folder;
  const auto script = folder.script("[ $RANK = 0 ] && exit 0\nsleep 0.3; echo done");
  const CliResult result = launch({"-n", "2", script});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(result.out, "[1] done\n");
}

TEST(CliLaunchEnd, CtrlCEndsAllRanksAndWhatTheyStarted) {
  const Folder folder;
  const auto script = folder.script("sleep 1000 & echo $! >> " + folder.file("pids") +
                                    "\necho $$ >> " + folder.file("pids") + "\nwait");
  const Launched job(folder, {"-n", "2", script});
  ASSERT_TRUE(eventually([&] { return pids_in(folder.file("pids")).size() == 4; })) << job.err();
  job.signal(SIGINT);
  EXPECT_EQ(job.wait(), 128 + SIGINT) << job.err();
  EXPECT_TRUE(holds(job.err(), "SIGINT: ending 2 ranks")) << job.err();
  EXPECT_TRUE(all_end(folder.file("pids")));
}

TEST(CliLaunchEnd, ASecondSignalDoesNotWaitForTheGraceTime) {
  const Folder folder;
  const auto script = folder.script("trap 'echo I stay' INT TERM\necho $$ >> " +
                                    folder.file("pids") + "\nwhile true; do sleep 0.05; done");
  const Launched job(folder, {"-n", "2", "--grace", "1000", script});
  ASSERT_TRUE(eventually([&] { return pids_in(folder.file("pids")).size() == 2; }));
  job.signal(SIGTERM);
  ASSERT_TRUE(eventually([&] { return lines_in(job.out()) >= 2; })) << job.out();
  job.signal(SIGINT);
  EXPECT_EQ(job.wait(), 128 + SIGTERM) << job.err();
  EXPECT_TRUE(all_end(folder.file("pids")));
}

TEST(CliLaunchEnd, NothingIsLeftWhenItIsKilledItself) {
  const Folder folder;
  const auto script = folder.script("sleep 1000 & echo $! >> " + folder.file("pids") +
                                    "\necho $$ >> " + folder.file("pids") + "\nwait");
  const Launched job(folder, {"-n", "2", script});
  ASSERT_TRUE(eventually([&] { return pids_in(folder.file("pids")).size() == 4; })) << job.err();
  job.signal(SIGKILL);
  EXPECT_EQ(job.wait(), -SIGKILL);
  EXPECT_TRUE(all_end(folder.file("pids")));
}

}  // namespace launch_end_test
}  // namespace tessera::test
