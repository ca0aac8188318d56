#pragma once

#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <string>

#include "tests/support/ranks.h"

namespace tessera::test {

/// An empty directory that all ranks of a test see, also where they are processes.
class SharedDir {
 public:
  explicit SharedDir(const std::string& name) {
    // All processes of a test program are children of one.
    const auto id = ranks_are_processes() ? ::getppid() : ::getpid();
    path_ = std::filesystem::temp_directory_path() / ("tessera_" + name + "_" + std::to_string(id));
    std::filesystem::create_directories(path_);
  }
  ~SharedDir() {
    std::error_code ignored;
    if (ranks_are_processes()) {  // they end at different times: the first one waits for all
      run_ranks(std::atoi(std::getenv("WORLD_SIZE")), [](int) {});
      if (std::atoi(std::getenv("RANK")) != 0) return;
    }
    std::filesystem::remove_all(path_, ignored);
  }
  SharedDir(const SharedDir&) = delete;
  SharedDir& operator=(const SharedDir&) = delete;

  const std::filesystem::path& path() const { return path_; }
  std::filesystem::path operator/(const std::string& name) const { return path_ / name; }

 private:
  std::filesystem::path path_;
};

}  // namespace tessera::test
