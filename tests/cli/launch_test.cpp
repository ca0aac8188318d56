// How `tessera launch` starts ranks and shows what they say.
#include <gtest/gtest.h>
#include <pty.h>

#include <set>

#include "tests/cli/launched.h"

namespace tessera::test {
namespace launch_test {

TEST(CliLaunch, SetsTheVariablesThatTorchrunSets) {
  const Folder folder;
  const auto script = folder.script(
      "echo $RANK $LOCAL_RANK $WORLD_SIZE $LOCAL_WORLD_SIZE $NODE_RANK $GROUP_RANK $MASTER_ADDR\n"
      "echo $ROLE_NAME $ROLE_RANK $ROLE_WORLD_SIZE $GROUP_WORLD_SIZE\n"
      "echo $MASTER_PORT");
  const CliResult result = launch({"-n", "3", script});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  const auto lines = by_rank(result.out);
  ASSERT_EQ(lines.size(), 3U) << result.out;
  std::set<std::string> ports;
  for (const std::string rank : {"0", "1", "2"}) {
    ASSERT_EQ(lines.at(rank).size(), 3U);
    EXPECT_EQ(lines.at(rank)[0], rank + " " + rank + " 3 3 0 0 127.0.0.1");
    EXPECT_EQ(lines.at(rank)[1], "default " + rank + " 3 1");
    ports.insert(lines.at(rank)[2]);
  }
  ASSERT_EQ(ports.size(), 1U);
  EXPECT_GT(std::stoi(*ports.begin()), 1023);
}

TEST(CliLaunch, GivesEachJobASecretOfItsOwn) {
  const Folder folder;
  const auto script = folder.script("echo $TESSERA_JOB_SECRET");
  std::set<std::string> secrets;
  for (int job = 0; job < 2; ++job) {
    const auto lines = by_rank(launch({"-n", "2", script}).out);
    EXPECT_EQ(lines.at("0")[0].size(), 32U);
    EXPECT_EQ(lines.at("0")[0], lines.at("1")[0]);
    secrets.insert(lines.at("0")[0]);
  }
  EXPECT_EQ(secrets.size(), 2U);
  setenv("TESSERA_JOB_SECRET", "ours", 1);  // launchers of several hosts have no other in common
  const auto lines = by_rank(launch({"-n", "1", "--nodes", "2", "--master-addr", "a", script}).out);
  unsetenv("TESSERA_JOB_SECRET");
  EXPECT_EQ(lines.at("0")[0], "ours");
}

TEST(CliLaunch, StartsTheLocalPartOfAJobOfSeveralHosts) {
  const Folder folder;
  const auto script =
      folder.script("echo $RANK $LOCAL_RANK $WORLD_SIZE $NODE_RANK $MASTER_ADDR $MASTER_PORT");
  const CliResult result = launch({"-n", "2", "--nodes", "6", "--node-rank", "5", "--master-addr",
                                   "first.host", "--master-port", "1234", script});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  const auto lines = by_rank(result.out);
  EXPECT_EQ(lines.at("10")[0], "10 0 12 5 first.host 1234");
  EXPECT_EQ(lines.at("11")[0], "11 1 12 5 first.host 1234");
}

TEST(CliLaunch, ThreadsAreLimitedWhereTheUserSaysNothing) {
  const Folder folder;
  const auto script = folder.script("echo \"<$OMP_NUM_THREADS>\"");
  const char* before = std::getenv("OMP_NUM_THREADS");
  const std::string kept = before != nullptr ? before : "";
  unsetenv("OMP_NUM_THREADS");
  const CliResult several = launch({"-n", "2", script});
  const CliResult one = launch({"-n", "1", script});
  setenv("OMP_NUM_THREADS", "3", 1);
  const CliResult chosen = launch({"-n", "2", script});
  before != nullptr ? setenv("OMP_NUM_THREADS", kept.c_str(), 1) : unsetenv("OMP_NUM_THREADS");
  EXPECT_EQ(by_rank(several.out).at("1")[0], "<1>");
  EXPECT_TRUE(holds(several.err, "OMP_NUM_THREADS=1")) << several.err;
  EXPECT_EQ(by_rank(one.out).at("0")[0], "<>");
  EXPECT_EQ(by_rank(chosen.out).at("1")[0], "<3>");
  EXPECT_EQ(chosen.err, "");
}

TEST(CliLaunch, ForgetsTheStoreOfATorchrunAroundIt) {
  const Folder folder;
  const auto script = folder.script("echo \"<$TORCHELASTIC_USE_AGENT_STORE>\"");
  setenv("TORCHELASTIC_USE_AGENT_STORE", "True", 1);
  const CliResult result = launch({script});
  unsetenv("TORCHELASTIC_USE_AGENT_STORE");
  EXPECT_EQ(result.out, "[0] <>\n");
}

TEST(CliLaunch, PassesArgumentsOnAsTheyAre) {
  const Folder folder;
  const auto script = folder.script("printf '<%s>' \"$@\"; echo");
  const CliResult result =
      launch({"-n", "1", script, "-n", "7", "--lr=3", "two words", "--", "-x"});
  EXPECT_EQ(result.out, "[0] <-n><7><--lr=3><two words><--><-x>\n") << result.err;
}

TEST(CliLaunch, LinesOfSeveralRanksDoNotMix) {
  const Folder folder;
  // Each line in two writes; a long one; and a last one without a newline.
  const auto script = folder.script(
      "for i in $(seq 200); do printf \"$RANK says \"; echo line $i; done\n"
      "head -c 30000 /dev/zero | tr '\\0' $RANK; echo; printf end");
  const CliResult result = launch({"-n", "4", script});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  const auto lines = by_rank(result.out);
  ASSERT_EQ(lines.size(), 4U);
  for (const auto& [rank, said] : lines) {
    ASSERT_EQ(said.size(), 202U) << rank;
    for (int i = 0; i < 200; ++i) {
      EXPECT_EQ(said[static_cast<size_t>(i)], rank + " says line " + std::to_string(i + 1));
    }
    EXPECT_EQ(said[200], std::string(30000, rank[0]));
    EXPECT_EQ(said[201], "end");
  }
}

TEST(CliLaunch, KeepsOutputAndErrorsApartAndLogsBoth) {
  const Folder folder;
  const auto script = folder.script("echo to out; echo to err >&2");
  const CliResult result = launch({"-n", "11", "--log-dir", folder.file("logs/today"), script});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_TRUE(holds(result.out, "[ 3] to out\n")) << result.out;
  EXPECT_TRUE(holds(result.out, "[10] to out\n")) << result.out;
  EXPECT_FALSE(holds(result.out, "to err"));
  EXPECT_TRUE(holds(result.err, "[ 3] to err\n")) << result.err;
  const std::string log = content(folder.file("logs/today/rank10.log"));
  EXPECT_TRUE(log == "to out\nto err\n" || log == "to err\nto out\n") << log;
}

TEST(CliLaunch, PrefixesAreColouredOnlyIfWanted) {
  const Folder folder;
  const auto script = folder.script("echo hello");
  EXPECT_EQ(launch({script}).out, "[0] hello\n");  // a pipe is no terminal
  EXPECT_EQ(launch({"--color", "always", script}).out, "\033[36m[0]\033[0m hello\n");
}

TEST(CliLaunch, PrefixesAreColouredOnATerminal) {
  const Folder folder;
  const auto script = folder.script("echo hello");
  int ours = -1, terminal = -1;
  ASSERT_EQ(openpty(&ours, &terminal, nullptr, nullptr, nullptr), 0);
  const auto shown = [&](const char* no_colour) {
    const pid_t pid = fork();
    if (pid == 0) {
      setenv("NO_COLOR", no_colour, 1);
      dup2(terminal, STDOUT_FILENO);
      execl(TESSERA_CLI, TESSERA_CLI, "launch", script.c_str(), nullptr);
      _exit(1);
    }
    int status = 0;
    waitpid(pid, &status, 0);
    EXPECT_EQ(status, 0);
    std::array<char, 256> text{};
    const ssize_t got = read(ours, text.data(), text.size());
    return std::string(text.data(), got > 0 ? static_cast<size_t>(got) : 0);
  };
  EXPECT_EQ(shown(""), "\033[36m[0]\033[0m hello\r\n");
  EXPECT_EQ(shown("1"), "[0] hello\r\n");
  close(terminal);
  close(ours);
}

TEST(CliLaunch, SaysWhatIsWrongWithACall) {
  const Folder folder;
  const auto refused = [](const std::vector<std::string>& words) {
    const CliResult result = launch(words);
    EXPECT_EQ(result.exit_code, 2) << result.out << result.err;
    EXPECT_EQ(result.out, "");
    return result.err;
  };
  EXPECT_TRUE(holds(refused({"-n", "2", "no_such_program"}), "no program no_such_program in PATH"));
  EXPECT_TRUE(holds(refused({"./no/such/program"}), "there is no program ./no/such/program"));
  EXPECT_TRUE(holds(refused({"/tmp"}), "is not a program that may be run"));
  std::ofstream(folder.file("text")) << "not a program";
  std::filesystem::permissions(folder.file("text"), std::filesystem::perms::owner_all);
  EXPECT_TRUE(holds(refused({folder.file("text")}), "cannot be run: Exec format error"));
  EXPECT_TRUE(holds(refused({}), "which program?"));
  EXPECT_TRUE(holds(refused({"--bogus", "true"}), "no option --bogus"));
  EXPECT_TRUE(holds(refused({"-n", "0", "true"}), "Value 0 not in range"));
  EXPECT_TRUE(holds(refused({"-n", "0", "true"}), "Usage: tessera launch"));
  EXPECT_TRUE(holds(refused({"--nodes", "2", "true"}), "--master-addr"));
  EXPECT_TRUE(holds(refused({"--nodes", "2", "--node-rank", "2", "true"}), "--node-rank is 2"));
}

}  // namespace launch_test
}  // namespace tessera::test
