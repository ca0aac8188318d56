#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/xattr.h>
#include <unistd.h>

#include <fstream>
#include <iterator>

#include "tessera/base/errors.h"
#include "tessera/checkpoint/async_save.h"
#include "tessera/checkpoint/save.h"
#include "tessera/checkpoint/steps.h"
#include "tessera/checkpoint/stored/spare_files.h"
#include "tessera/comm/threads.h"
#include "tests/checkpoint/one_value.h"
#include "tests/support_pure/expect_error.h"
#include "tests/support_pure/temp_dir.h"

/// Saves that overwrite files of a checkpoint that was replaced before.
namespace tessera {
namespace spare_test {

namespace fs = std::filesystem;
using comm::run_ranks;
using test::expect_error;
using test::names_in;
using test::state_of;
using test::TempDir;
using test::value_in;

/// Attributes stay with a file under all of its names, and are not given to a new one.
constexpr const char* kMark = "user.tessera_spare_test";

void mark(const fs::path& file) {
  EXPECT_EQ(::setxattr(file.c_str(), kMark, "x", 1, 0), 0) << file;
}

bool is_marked(const fs::path& file) { return ::getxattr(file.c_str(), kMark, nullptr, 0) > 0; }

std::string bytes_of(const fs::path& file) {
  std::ifstream in(file, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

/// Whether files are overwritten on the file system of the tests: not on tmpfs.
bool overwrites(const TempDir& dir) {
  const fs::path file = dir / "probe";
  std::ofstream(file) << "x";
  const bool answer = checkpoint::is_unshared(file);
  fs::remove(file);
  return answer;
}

void save_value(const TempDir& dir, int ranks, double value) {
  run_ranks(ranks, [&](int) { save(state_of(value), dir / "ckpt", {.spare = dir / "spare"}); });
  EXPECT_EQ(value_in(dir / "ckpt"), value);
}

TEST(SpareFiles, AreOverwrittenByTheSaveAfterTheNext) {
  const TempDir dir;
  save_value(dir, 2, 1);
  EXPECT_FALSE(fs::exists(dir / "spare"));  // nothing was replaced
  mark(dir / "ckpt/__1_0.distcp");
  save_value(dir, 2, 2);
  EXPECT_EQ(names_in(dir / "spare"), (std::vector<std::string>{"__0_0.distcp", "__1_0.distcp"}));
  save_value(dir, 2, 3);
  EXPECT_EQ(is_marked(dir / "ckpt/__1_0.distcp"), overwrites(dir));
  EXPECT_FALSE(is_marked(dir / "ckpt/__0_0.distcp"));
  EXPECT_EQ(names_in(dir.path()), (std::vector<std::string>{"ckpt", "spare"}));
}

TEST(SpareFiles, OfMoreRanksAndLongerFilesLeaveNothingBehind) {
  const TempDir dir;
  run_ranks(4, [&](int rank) {
    for (int i = 0; i < 2; ++i) {
      State large = state_of(1);
      large.emplace(join_text("large", rank), at::full({1 << 21}, 7.0));
      save(large, dir / "ckpt", {.spare = dir / "spare"});
    }
  });
  save_value(dir, 2, 2);
  EXPECT_EQ(names_in(dir / "ckpt"), (std::vector<std::string>{".metadata", "__0_0.distcp",
                                                              "__1_0.distcp", "checksums.json"}));
  EXPECT_LT(fs::file_size(dir / "ckpt/__0_0.distcp"), 16u << 10);
  save_value(dir, 2, 3);
  save_value(dir, 4, 4);
}

TEST(SpareFiles, ThatAnotherProgramSeesAreNotOverwritten) {
  const TempDir dir;
  save_value(dir, 2, 1);
  fs::create_hard_link(dir / "ckpt/__0_0.distcp", dir / "backup");
  const int open_file = ::open((dir / "ckpt/__1_0.distcp").c_str(), O_RDONLY | O_CLOEXEC);
  const std::string linked = bytes_of(dir / "backup");
  const std::string read = bytes_of(dir / "ckpt/__1_0.distcp");
  for (int value = 2; value < 5; ++value) save_value(dir, 2, value);
  EXPECT_EQ(bytes_of(dir / "backup"), linked);
  std::string now(read.size(), '\0');
  EXPECT_EQ(::pread(open_file, now.data(), now.size(), 0), static_cast<ssize_t>(read.size()));
  EXPECT_EQ(now, read);
  ::close(open_file);

  const fs::path file = dir / "mapped";
  std::ofstream(file) << "x";
  const int mapped = ::open(file.c_str(), O_RDONLY | O_CLOEXEC);
  void* const page = ::mmap(nullptr, 1, PROT_READ, MAP_SHARED, mapped, 0);
  ::close(mapped);
  EXPECT_FALSE(checkpoint::is_unshared(file));
  ::munmap(page, 1);
  fs::create_symlink(file, dir / "link");
  EXPECT_FALSE(checkpoint::is_unshared(dir / "link"));
  EXPECT_FALSE(checkpoint::is_unshared(dir / "none"));
}

TEST(SpareFiles, OfStepsComeFromTheOneThatIsRemoved) {
  const TempDir dir;
  const fs::path root = dir / "run";
  for (int step = 1; step <= 4; ++step) {
    run_ranks(2, [&](int) {
      save_step(state_of(step), root, step, {.save = {.spare = dir / "spare"}, .keep = 2});
    });
    if (step == 1) mark(root / "step_1/__0_0.distcp");
    EXPECT_EQ(value_in(step_path(root, step)), step);
  }
  EXPECT_EQ(saved_steps(root), (std::vector<int64_t>{3, 4}));
  EXPECT_EQ(names_in(root), (std::vector<std::string>{"step_3", "step_4"}));
  EXPECT_EQ(is_marked(root / "step_4/__0_0.distcp"), overwrites(dir));
  run_ranks(2, [&](int) {
    AsyncSaver saver;
    saver.save(state_of(9), dir / "ckpt", {.spare = dir / "spare"});
    saver.wait();
  });
  EXPECT_EQ(value_in(dir / "ckpt"), 9);
  EXPECT_FALSE(fs::exists(dir / "spare"));
}

TEST(SpareFiles, AreNeverThoseOfAnotherDirectory) {
  const TempDir dir;
  save_value(dir, 2, 1);
  fs::create_directory(dir / "home");
  std::ofstream(dir / "home/thesis.txt") << "x";
  std::ofstream(dir / "file") << "x";
  for (const std::string name : {"ckpt", "home", "file"}) {
    expect_error<InvalidArgument>([&] { save(state_of(2), dir / "other", {.spare = dir / name}); },
                                  {name});
  }
  EXPECT_EQ(value_in(dir / "ckpt"), 1);
  EXPECT_TRUE(fs::exists(dir / "home/thesis.txt"));
  EXPECT_EQ(names_in(dir.path()), (std::vector<std::string>{"ckpt", "file", "home"}));
}

}  // namespace spare_test
}  // namespace tessera
