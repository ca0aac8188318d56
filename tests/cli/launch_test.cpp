#include <ATen/ops/full.h>
#include <gtest/gtest.h>
#include <pty.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <map>
#include <set>
#include <sstream>
#include <thread>

#include "tessera/tessera.h"
#include "tests/cli/run_cli.h"
#include "tests/support/processes.h"

namespace tessera::test {
namespace {

using std::chrono::steady_clock;

bool holds(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

/// A folder of this test's own, gone at its end.
class Folder {
 public:
  Folder() {
    std::string name = std::filesystem::temp_directory_path() / "tessera_launch_XXXXXX";
    path_ = mkdtemp(name.data());
  }
  // Not std::filesystem::remove_all: some builds of libtorch export one that crashes here.
  ~Folder() { (void)std::system(("rm -rf '" + path_.string() + "'").c_str()); }
  std::string file(const std::string& name) const { return path_ / name; }

  /// A shell script that ranks can run.
  std::string script(const std::string& body) const {
    const std::string name = file("rank.sh");
    std::ofstream(name) << "#!/bin/bash\n" << body << "\n";
    chmod(name.c_str(), S_IRWXU);
    return name;
  }

 private:
  std::filesystem::path path_;
};

std::string content(const std::string& file) {
  std::ostringstream text;
  text << std::ifstream(file).rdbuf();
  return text.str();
}

CliResult launch(std::vector<std::string> words) {
  words.insert(words.begin(), "launch");
  return run_cli(words);
}

/// rank -> its lines, from a launch's output.
std::map<std::string, std::vector<std::string>> by_rank(const std::string& out) {
  std::map<std::string, std::vector<std::string>> lines;
  std::istringstream text(out);
  for (std::string line; std::getline(text, line);) {
    const size_t end = line.find("] ");
    EXPECT_TRUE(line.starts_with("[") && end != std::string::npos) << "without a prefix: " << line;
    if (end != std::string::npos) lines[line.substr(1, end - 1)].push_back(line.substr(end + 2));
  }
  return lines;
}

/// `tessera launch` as a child that signals can be sent to; its output goes to files.
class Launched {
 public:
  Launched(const Folder& folder, const std::vector<std::string>& words)
      : out_(folder.file("launch.out")), err_(folder.file("launch.err")) {
    std::vector<std::string> all = {TESSERA_CLI, "launch"};
    all.insert(all.end(), words.begin(), words.end());
    pid_ = fork();
    if (pid_ != 0) return;
    std::vector<char*> argv;
    for (auto& word : all) argv.push_back(word.data());
    argv.push_back(nullptr);
    if (freopen(out_.c_str(), "w", stdout) == nullptr) _exit(1);
    if (freopen(err_.c_str(), "w", stderr) == nullptr) _exit(1);
    execv(TESSERA_CLI, argv.data());
    _exit(1);
  }

  void signal(int number) const { kill(pid_, number); }

  /// Exit code, or -signal; -1000 if it had to be killed.
  int wait() const {
    const auto deadline = steady_clock::now() + std::chrono::seconds(60);
    int status = 0;
    while (waitpid(pid_, &status, WNOHANG) == 0) {
      if (steady_clock::now() > deadline) {
        kill(pid_, SIGKILL);
        waitpid(pid_, &status, 0);
        return -1000;
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
    return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
  }
  std::string out() const { return content(out_); }
  std::string err() const { return content(err_); }

 private:
  std::string out_;
  std::string err_;
  pid_t pid_ = -1;
};

/// Waits until the condition holds, for at most a minute.
template <typename Condition>
bool eventually(const Condition& condition) {
  const auto deadline = steady_clock::now() + std::chrono::seconds(60);
  while (!condition()) {
    if (steady_clock::now() > deadline) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  return true;
}

int lines_in(const std::string& text) {
  return static_cast<int>(std::count(text.begin(), text.end(), '\n'));
}

/// The process numbers that ranks wrote into a file, one a line.
std::vector<pid_t> pids_in(const std::string& file) {
  std::vector<pid_t> pids;
  std::ifstream text(file);
  for (pid_t pid = 0; text >> pid;) pids.push_back(pid);
  return pids;
}

/// Gone or a zombie that nobody has reaped yet.
bool has_ended(pid_t pid) {
  const std::string stat = content("/proc/" + std::to_string(pid) + "/stat");
  const size_t after_name = stat.rfind(") ");
  return after_name == std::string::npos || stat[after_name + 2] == 'Z';
}

bool all_end(const std::string& pid_file) {
  return eventually([&] {
    const auto pids = pids_in(pid_file);
    return std::all_of(pids.begin(), pids.end(), has_ended);
  });
}

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

TEST(CliLaunch, TheFirstRankThatFailsEndsTheJobWithItsCodeAndLastLines) {
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

TEST(CliLaunch, AKilledRankIsNamedWithItsSignal) {
  const Folder folder;
  const auto script = folder.script("[ $RANK = 1 ] && kill -9 $$\nexec sleep 1000");
  const CliResult result = launch({"-n", "2", script});
  EXPECT_EQ(result.exit_code, 128 + SIGKILL);
  EXPECT_TRUE(holds(result.err, "rank 1 ")) << result.err;
  EXPECT_TRUE(holds(result.err, "ended with SIGKILL; it printed nothing")) << result.err;
}

TEST(CliLaunch, ARankThatDoesNotEndIsKilledAfterTheGraceTime) {
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

TEST(CliLaunch, OneThatIsDoneEarlyLeavesTheOthersAlone) {
  const Folder folder;
  const auto script = folder.script("[ $RANK = 0 ] && exit 0\nsleep 0.3; echo done");
  const CliResult result = launch({"-n", "2", script});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(result.out, "[1] done\n");
}

TEST(CliLaunch, CtrlCEndsAllRanksAndWhatTheyStarted) {
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

TEST(CliLaunch, ASecondSignalDoesNotWaitForTheGraceTime) {
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

TEST(CliLaunch, NothingIsLeftWhenItIsKilledItself) {
  const Folder folder;
  const auto script = folder.script("sleep 1000 & echo $! >> " + folder.file("pids") +
                                    "\necho $$ >> " + folder.file("pids") + "\nwait");
  const Launched job(folder, {"-n", "2", script});
  ASSERT_TRUE(eventually([&] { return pids_in(folder.file("pids")).size() == 4; })) << job.err();
  job.signal(SIGKILL);
  EXPECT_EQ(job.wait(), -SIGKILL);
  EXPECT_TRUE(all_end(folder.file("pids")));
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
  EXPECT_TRUE(holds(refused({"/tmp"}), "is no program that may be run"));
  std::ofstream(folder.file("text")) << "not a program";
  std::filesystem::permissions(folder.file("text"), std::filesystem::perms::owner_all);
  EXPECT_TRUE(holds(refused({folder.file("text")}), "cannot be run: Exec format error"));
  EXPECT_TRUE(holds(refused({}), "which program?"));
  EXPECT_TRUE(holds(refused({"--bogus", "true"}), "no option --bogus"));
  EXPECT_TRUE(holds(refused({"-n", "0", "true"}), "-n"));
  EXPECT_TRUE(holds(refused({"--nodes", "2", "true"}), "--master-addr"));
  EXPECT_TRUE(holds(refused({"--nodes", "2", "--node-rank", "2", "true"}), "--node-rank is 2"));
}

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

TEST(CliLaunch, TheRanksOfATesseraProgramMeet) {
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
TEST(CliLaunch, TheRanksOfSeveralLaunchesMeet) {
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

TEST(CliLaunch, AKilledRankOfATesseraProgramIsTheOneThatIsBlamed) {
  const CliResult result = launch_scenario(kDieAmongPeers);
  EXPECT_EQ(result.exit_code, 128 + SIGKILL) << result.out << result.err;
  EXPECT_TRUE(holds(result.err, "launch: rank 1 (pid")) << result.err;
  EXPECT_TRUE(holds(result.err, "ended with SIGKILL")) << result.err;
}

}  // namespace
}  // namespace tessera::test
