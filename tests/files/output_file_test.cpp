#include "tessera/files/output_file.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <linux/magic.h>
#include <sys/mman.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <random>
#include <vector>

#include "tessera/files/crc32.h"
#include "tests/support_pure/expect_error.h"
#include "tests/support_pure/small_disk.h"
#include "tests/support_pure/temp_dir.h"

namespace tessera::files {
namespace output_file_test {

using test::contents_of;
using test::expect_error;
using test::SmallDisk;
using test::TempDir;

constexpr size_t kBlock = BlockWriter::kBlock;

std::string random_text(size_t size) {
  std::mt19937_64 random(size + 1);
  std::string out(size + 8, '\0');
  for (size_t i = 0; i < size; i += 8) {
    const uint64_t value = random();
    std::memcpy(out.data() + i, &value, sizeof value);
  }
  out.resize(size);
  return out;
}

/// In parts of odd sizes, small and larger than a block.
void write_in_parts(OutputFile& file, std::string_view text) {
  constexpr size_t kParts[] = {1, 63, 4096, 100'001, kBlock + 4097, 17};
  for (size_t i = 0; !text.empty(); ++i) {
    const size_t size = std::min(text.size(), kParts[i % std::size(kParts)]);
    file.write(text.substr(0, size));
    text.remove_prefix(size);
  }
}

TEST(DirectFile, HasEveryByteWhateverItsSize) {
  const TempDir dir;
  for (const std::filesystem::path& folder : {dir.path(), std::filesystem::path("/dev/shm")}) {
    const auto path = folder / ("tessera_output_file_test_" + std::to_string(::getpid()));
    for (const size_t size : {size_t{0}, size_t{1}, kBlock - 1, kBlock, kBlock + 1, kBlock + 4096,
                              5 * kBlock + 12345}) {
      const std::string text = random_text(size);
      BlockSums sums;
      OutputFile file(path, {.sums = &sums, .direct = true});
      write_in_parts(file, text);
      EXPECT_EQ(file.position(), size);
      file.close({.sync = true});
      EXPECT_TRUE(contents_of(path) == text) << path << " of " << size;
      ASSERT_EQ(sums.values().size(), block_count(size));
      for (uint64_t i = 0; i < sums.values().size(); ++i) {
        const auto block = std::string_view(text).substr(i * BlockSums::kBlock, BlockSums::kBlock);
        EXPECT_EQ(crc32(std::as_bytes(std::span(block))), sums.values()[i]) << i;
      }
    }
    std::filesystem::remove(path);
  }
}

TEST(DirectFile, LeavesThePageCacheToOthers) {
  const TempDir dir;
  struct statfs found {};
  ASSERT_EQ(::statfs(dir.path().c_str(), &found), 0);
  if (found.f_type != EXT4_SUPER_MAGIC) GTEST_SKIP() << "not every file system writes directly";
  const auto path = dir / "large";
  const std::string text = random_text(4 * kBlock + 5);
  OutputFile file(path, {.direct = true});
  file.write(text);
  file.close({.sync = true});
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  void* const mapped = ::mmap(nullptr, text.size(), PROT_READ, MAP_SHARED, fd, 0);
  ASSERT_NE(mapped, MAP_FAILED);
  std::vector<unsigned char> resident(text.size() / 4096 + 1);
  EXPECT_EQ(::mincore(mapped, text.size(), resident.data()), 0);
  const auto pages = std::ranges::count_if(resident, [](unsigned char page) { return page & 1; });
  EXPECT_LE(pages, 1);  // the last, which is no whole page
  ::munmap(mapped, text.size());
  ::close(fd);
}

TEST(DirectFile, AFailedWriteIsAnErrorThatNamesTheFile) {
  const TempDir dir;
  const std::string text = random_text(8 * kBlock);
  for (const size_t limit : {size_t{1000}, kBlock / 2, 2 * kBlock + 777}) {
    const SmallDisk small(limit);
    OutputFile file(dir / "large", {.direct = true});
    const auto write = [&] {
      file.write(text);
      file.close({.sync = true});
    };
    expect_error<Error>(write, {"cannot write", "large", "File too large"});
  }
  const SmallDisk small(1000);
  OutputFile file(dir / "small", {.direct = true});
  file.write(std::string_view(text).substr(0, 2000));
  expect_error<Error>([&] { file.close(); }, {"cannot write", "small", "File too large"});
}

TEST(DirectFile, CanBeAbandonedAtAnyPoint) {
  const TempDir dir;
  const std::string text = random_text(3 * kBlock);
  for (const size_t size : {size_t{0}, size_t{10}, kBlock, 3 * kBlock}) {
    OutputFile file(dir / "abandoned", {.direct = true});
    file.write(std::string_view(text).substr(0, size));
  }
}

}  // namespace output_file_test
}  // namespace tessera::files
