// How `tessera launch --max-restarts` begins a job again.
#include <gtest/gtest.h>

#include "tests/cli/launched.h"

namespace tessera::test {
namespace launch_restart_test {

TEST(CliLaunchRestarts, BeginAgainAfterARankHasFailed) {
  const Folder folder;
  const auto script = folder.script(
      "echo attempt $TESSERA_RESTARTS of $WORLD_SIZE\n"
      "[ $RANK = 1 ] && [ $TESSERA_RESTARTS -lt 2 ] && kill -9 $$\n"
      "exit 0");
  const CliResult result = launch({"-n", "2", "--max-restarts", "3", script});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  const auto lines = by_rank(result.out);
  EXPECT_EQ(lines.at("1"),
            (std::vector<std::string>{"attempt 0 of 2", "attempt 1 of 2", "attempt 2 of 2"}));
  EXPECT_NE(result.err.find("restart 2 of 3, with 2 ranks"), std::string::npos) << result.err;
}

TEST(CliLaunchRestarts, EndWithTheCodeOfTheLastAttempt) {
  const Folder folder;
  const auto script = folder.script("exit $((7 + TESSERA_RESTARTS))");
  EXPECT_EQ(launch({"-n", "1", script}).exit_code, 7);
  EXPECT_EQ(launch({"-n", "1", "--max-restarts", "2", script}).exit_code, 9);
}

TEST(CliLaunchRestarts, HaveFewerRanksIfAllowed) {
  const Folder folder;
  const auto script = folder.script("echo $WORLD_SIZE; exit 1");
  const CliResult result = launch({"-n", "4", "--max-restarts", "4", "--min-ranks", "2", script});
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_EQ(by_rank(result.out).at("0"), (std::vector<std::string>{"4", "3", "2", "2", "2"}));
}

TEST(CliLaunchRestarts, GiveEachAttemptALogAndASecretOfItsOwn) {
  const Folder folder;
  const auto script = folder.script("echo $TESSERA_JOB_SECRET; exit $((1 - TESSERA_RESTARTS))");
  const std::filesystem::path logs = folder.file("logs");
  const CliResult result =
      launch({"-n", "1", "--max-restarts", "1", "--log-dir", logs.string(), script});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  const auto secrets = by_rank(result.out).at("0");
  ASSERT_EQ(secrets.size(), 2U);
  EXPECT_NE(secrets[0], secrets[1]);
  EXPECT_TRUE(std::filesystem::exists(logs / "rank0.log"));
  EXPECT_TRUE(std::filesystem::exists(logs / "restart1/rank0.log"));
}

TEST(CliLaunchRestarts, AreForOneHostAndNeedSense) {
  EXPECT_EQ(launch({"-n", "1", "--nodes", "2", "--master-addr", "a", "--max-restarts", "1", "true"})
                .exit_code,
            2);
  EXPECT_EQ(launch({"-n", "2", "--max-restarts", "1", "--min-ranks", "3", "true"}).exit_code, 2);
  EXPECT_EQ(launch({"-n", "2", "--min-ranks", "1", "true"}).exit_code, 2);
}

}  // namespace launch_restart_test
}  // namespace tessera::test
