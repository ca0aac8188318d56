#pragma once

#include <sys/wait.h>

#include <array>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

/// Runs the command line as a user would.
namespace tessera::test {

struct CliResult {
  int exit_code = -1;
  std::string out;
  std::string err;
};

inline CliResult run_cli(const std::vector<std::string>& words) {
  std::string command = TESSERA_CLI;
  for (const auto& word : words) {
    command += " '" + word + "'";  // no test passes a quote
  }
  const auto errors =
      std::filesystem::temp_directory_path() / ("tessera_cli_" + std::to_string(getpid()) + ".err");
  CliResult result;
  FILE* pipe = popen((command + " 2>" + errors.string()).c_str(), "r");
  if (pipe == nullptr) return result;
  std::array<char, 4096> buffer{};
  for (size_t n = 0; (n = fread(buffer.data(), 1, buffer.size(), pipe)) > 0;)
    result.out.append(buffer.data(), n);
  const int status = pclose(pipe);
  result.exit_code = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  std::ostringstream read;
  read << std::ifstream(errors).rdbuf();
  result.err = read.str();
  std::filesystem::remove(errors);
  return result;
}

}  // namespace tessera::test
