// Ranks of programs that use the library, started by `tessera launch`.
#include <ATen/ops/full.h>
#include <gtest/gtest.h>

#include <iostream>

#include "tessera/tessera.h"
#include "tests/cli/launched.h"
#include "tests/support/processes.h"

namespace tessera::test {
namespace launch_program_test {

/// What each rank of TheRanksOfATesseraProgramMeet does.
const testing::Scenario kAddRanks("add the ranks of a launch", [] {
  const DeviceMesh mesh = init_device_mesh("tp=3");
  const at::Tensor mine = at::full({1}, mesh.local_rank("tp") + 1);
  const at::Tensor sum = full_tensor(from_local(mine, mesh, {Partial()}));
  std::cout << "sum " << sum.item<int64_t>() << std::endl;
});

/// What each rank of AKilledRankOfATesseraProgramIsTheOneThatIsBlamed does.
const testing::Scenario kDieAmongPeers("die among peers", [] {
  const DeviceMesh mesh = init_device_mesh("tp=3");
  const at::Tensor mine = at::full({1}, 1);
  for (int i = 0; i < 1'000'000; ++i) {
    if (i == 5 && mesh.local_rank("tp") == 1) raise(SIGKILL);
    full_tensor(from_local(mine, mesh, {Partial()}));
  }
});

/// Starts this program as the ranks of a scenario.
CliResult launch_scenario(const testing::Scenario& scenario) {
  setenv("TESSERA_TEST_SCENARIO", scenario.name().c_str(), 1);
  CliResult result = launch({"-n", "3", std::filesystem::read_symlink("/proc/self/exe").string()});
  unsetenv("TESSERA_TEST_SCENARIO");
  return result;
}

TEST(CliLaunchProgram, TheRanksOfATesseraProgramMeet) {
  const CliResult result = launch_scenario(kAddRanks);
  EXPECT_EQ(result.exit_code, 0) << result.out << result.err;
  const auto lines = by_rank(result.out);
  EXPECT_EQ(lines.size(), 3U) << result.out;
  for (const auto& [rank, said] : lines) EXPECT_EQ(said.front(), "sum 6") << rank;
}

/// What each rank of TheRanksOfSeveralLaunchesMeet does.
const testing::Scenario kAddRanksOfHosts("add the ranks of two launches", [] {
  const DeviceMesh mesh = init_device_mesh("dp=2,tp=2");
  const at::Tensor mine = at::full({1}, 10 * mesh.local_rank("dp") + mesh.local_rank("tp"));
  const at::Tensor sum = full_tensor(from_local(mine, mesh, {Partial(), Partial()}));
  std::cout << "sum " << sum.item<int64_t>() << std::endl;
});

/// A port that nothing listens on now.
std::string free_port() {
  const CliResult result = launch({"bash", "-c", "echo $MASTER_PORT"});
  return result.out.substr(4, result.out.size() - 5);  // "[0] 12345\n"
}

/// Two launches stand for two hosts.
TEST(CliLaunchProgram, TheRanksOfSeveralLaunchesMeet) {
  const Folder first, second;
  const std::string self = std::filesystem::read_symlink("/proc/self/exe").string();
  const std::string port = free_port();
  const auto words = [&](const char* node) {
    return std::vector<std::string>{"-n",
                                    "2",
                                    "--nodes",
                                    "2",
                                    "--node-rank",
                                    node,
                                    "--master-addr",
                                    "127.0.0.1",
                                    "--master-port",
                                    port,
                                    self};
  };
  setenv("TESSERA_TEST_SCENARIO", kAddRanksOfHosts.name().c_str(), 1);
  const Launched one(first, words("0"));
  const Launched two(second, words("1"));
  unsetenv("TESSERA_TEST_SCENARIO");
  EXPECT_EQ(one.wait(), 0) << one.err();
  EXPECT_EQ(two.wait(), 0) << two.err();
  EXPECT_EQ(by_rank(one.out() + two.out()).size(), 4U);
  EXPECT_TRUE(holds(one.out(), "[1] sum 22\n")) << one.out();
  EXPECT_TRUE(holds(two.out(), "[3] sum 22\n")) << two.out();
}

TEST(CliLaunchProgram, AKilledRankOfATesseraProgramIsTheOneThatIsBlamed) {
  const CliResult result = launch_scenario(kDieAmongPeers);
  EXPECT_EQ(result.exit_code, 128 + SIGKILL) << result.out << result.err;
  EXPECT_TRUE(holds(result.err, "launch: rank 1 (pid")) << result.err;
  EXPECT_TRUE(holds(result.err, "ended with SIGKILL")) << result.err;
}

}  // namespace launch_program_test
}  // namespace tessera::test
