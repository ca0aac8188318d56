#include "tessera/checkpoint/stored/remove_tree.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/statvfs.h>
#include <sys/wait.h>
#include <unistd.h>

#include <fstream>
#include <string>

#include "tests/checkpoint/one_value.h"
#include "tests/support_pure/temp_dir.h"

namespace tessera::checkpoint {
namespace remove_tree_test {

namespace fs = std::filesystem;
using test::names_in;
using test::TempDir;

/// Two files with a name that leads elsewhere between them.
fs::path make_tree(const TempDir& dir, size_t bytes) {
  const fs::path tree = dir / "tree";
  fs::create_directories(tree / "inner");
  std::ofstream(tree / "a") << std::string(bytes, 'a');
  std::ofstream(tree / "inner/b") << std::string(bytes, 'b');
  std::ofstream(tree / "empty");
  std::ofstream(dir / "kept") << "kept";
  fs::create_symlink(dir / "kept", tree / "link");
  return tree;
}

TEST(RemoveTree, InTheBackgroundLeavesNoNames) {
  const TempDir dir;
  remove_tree_in_background(make_tree(dir, 1 << 20));
  EXPECT_EQ(names_in(dir.path()), std::vector<std::string>{"kept"});
  wait_for_removals();
  remove_tree_in_background(dir / "none");
  wait_for_removals();
}

/// Files that this process has mapped, by /proc: removed ones are marked there.
bool maps_removed_files() {
  std::ifstream maps("/proc/self/maps");
  for (std::string line; std::getline(maps, line);) {
    if (line.ends_with("(deleted)") && line.find("/tree/") != std::string::npos) return true;
  }
  return false;
}

/// A child must neither hold the space nor wait for threads that it does not have.
TEST(RemoveTree, InTheBackgroundIsOfThisProcessAlone) {
  for (int i = 0; i < 20; ++i) {
    const TempDir dir;
    remove_tree_in_background(make_tree(dir, 4 << 20));
    const pid_t child = ::fork();
    if (child == 0) {
      ::alarm(20);
      wait_for_removals();
      ::_exit(maps_removed_files() ? 1 : 0);
    }
    int status = 0;
    ::waitpid(child, &status, 0);
    EXPECT_EQ(status, 0);
    wait_for_removals();
    EXPECT_FALSE(maps_removed_files());
  }
}

}  // namespace remove_tree_test
}  // namespace tessera::checkpoint
