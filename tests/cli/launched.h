#pragma once

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "tests/cli/run_cli.h"

/// Jobs of `tessera launch`, and a look at what they leave.
namespace tessera::test {

using std::chrono::steady_clock;

inline bool holds(const std::string& text, const std::string& part) {
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
  ~Folder() { EXPECT_EQ(std::system(("rm -rf '" + path_.string() + "'").c_str()), 0); }
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

inline std::string content(const std::string& file) {
  std::ostringstream text;
  text << std::ifstream(file).rdbuf();
  return text.str();
}

inline CliResult launch(std::vector<std::string> words) {
  words.insert(words.begin(), "launch");
  return run_cli(words);
}

/// rank -> its lines, from a launch's output.
inline std::map<std::string, std::vector<std::string>> by_rank(const std::string& out) {
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
inline bool eventually(const Condition& condition) {
  const auto deadline = steady_clock::now() + std::chrono::seconds(60);
  while (!condition()) {
    if (steady_clock::now() > deadline) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  return true;
}

inline int lines_in(const std::string& text) {
  return static_cast<int>(std::count(text.begin(), text.end(), '\n'));
}

/// The process numbers that ranks wrote into a file, one a line.
inline std::vector<pid_t> pids_in(const std::string& file) {
  std::vector<pid_t> pids;
  std::ifstream text(file);
  for (pid_t pid = 0; text >> pid;) pids.push_back(pid);
  return pids;
}

/// Gone or a zombie that is not reaped yet.
inline bool has_ended(pid_t pid) {
  const std::string stat = content("/proc/" + std::to_string(pid) + "/stat");
  const size_t after_name = stat.rfind(") ");
  return after_name == std::string::npos || stat[after_name + 2] == 'Z';
}

inline bool all_end(const std::string& pid_file) {
  return eventually([&] {
    const auto pids = pids_in(pid_file);
    return std::all_of(pids.begin(), pids.end(), has_ended);
  });
}

}  // namespace tessera::test
