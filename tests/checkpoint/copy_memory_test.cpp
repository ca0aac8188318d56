#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <malloc.h>

#include <atomic>
#include <fstream>
#include <thread>

#include "tessera/checkpoint/copy_stored.h"
#include "tessera/checkpoint/save.h"
#include "tessera/checkpoint/stored/stored_box.h"
#include "tessera/comm/threads.h"
#include "tessera/dtensor/dtensor.h"
#include "tests/support_pure/temp_dir.h"

namespace tessera::checkpoint {
namespace copy_memory_test {

using comm::init_device_mesh;
using comm::run_ranks;
using test::TempDir;

/// Memory of this process that is not of files, in bytes.
int64_t anonymous_bytes() {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    if (line.starts_with("RssAnon:")) return std::stoll(line.substr(8)) * 1024;
  }
  return 0;
}

/// The most that it grows while `work` runs, by many samples.
int64_t growth_during(const std::function<void()>& work) {
  ::malloc_trim(0);
  const int64_t before = anonymous_bytes();
  std::atomic<int64_t> most = before;
  std::atomic<bool> done = false;
  std::thread sampler([&] {
    while (!done) {
      most = std::max<int64_t>(most, anonymous_bytes());
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
  });
  work();
  done = true;
  sampler.join();
  return most - before;
}

// One tensor of 160 MiB in four chunks, copied through a buffer of 16.
TEST(CopyMemory, IsABufferAndNotATensor) {
  constexpr int64_t kRows = 40 << 10, kColumns = 1 << 10;
  const TempDir dir;
  run_ranks(4, [&](int rank) {
    const DeviceMesh mesh = init_device_mesh("dp=4");
    const at::Tensor mine = at::full({kRows / 4, kColumns}, rank);
    save({{"w", from_local(mine.to(at::kFloat), mesh, {Shard(0)})}}, dir / "a");
  });
  const auto stored = open_stored(dir / "a", {});
  constexpr int64_t kMost = int64_t{64} << 20;
  EXPECT_LT(growth_during([&] { copy_resharded(*stored, dir / "b", 3, {}); }), kMost);
  EXPECT_LT(growth_during([&] { copy_as_safetensors(*stored, dir / "m.safetensors", {}); }), kMost);
  EXPECT_LT(growth_during([&] { copy_as_checkpoint(*stored, dir / "c", {}); }), kMost);
  const auto copied = open_stored(dir / "b", {});
  const auto& entry = std::get<dcp::TensorEntry>(copied->metadata().entries.at("w"));
  const at::Tensor edge =
      read_box(*copied, "w", entry, DType::f32, {{kRows / 2 - 1, 0}, {kRows / 2 + 1, 1}});
  EXPECT_TRUE(at::equal(edge, at::tensor({1.0F, 2.0F}).reshape({2, 1})));
}

}  // namespace copy_memory_test
}  // namespace tessera::checkpoint
