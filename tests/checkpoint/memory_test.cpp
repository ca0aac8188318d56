#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "tessera/checkpoint/load.h"
#include "tessera/checkpoint/save.h"
#include "tessera/comm/threads.h"
#include "tessera/dtensor/dtensor.h"
#include "tests/checkpoint/memory_growth.h"
#include "tests/support_pure/temp_dir.h"

/// What saves and loads need beyond the state: a buffer, whatever its size and its layouts.
namespace tessera {
namespace memory_test {

using comm::init_device_mesh;
using comm::run_ranks;
using test::growth_during;
using test::TempDir;

constexpr int64_t kRows = 32 << 10, kColumns = 1 << 10;  // 128 MiB of float32
constexpr int64_t kMost = int64_t{48} << 20;

/// All memory: pages of the checkpoint's files count too.
int64_t growth(const std::function<void()>& work) { return growth_during("VmRSS:", work); }

TEST(Memory, OfASaveAndALoadIsABuffer) {
  const TempDir dir;
  const at::Tensor whole = at::zeros({kRows, kColumns});
  whole.select(1, 0).copy_(at::arange(kRows));
  const at::Tensor turned = whole.t().contiguous();
  EXPECT_LT(growth([&] { save({{"w", whole}, {"t", turned.t()}}, dir / "a"); }), kMost);
  at::Tensor w = at::ones({kRows, kColumns}), t = at::ones({kColumns, kRows}).t();
  State state = {{"w", w}, {"t", t}};
  EXPECT_LT(growth([&] { load(state, dir / "a"); }), kMost);
  EXPECT_TRUE(at::equal(w, whole) && at::equal(t, whole));
  EXPECT_LT(growth([&] { load(state, dir / "a", {.verify = false}); }), kMost);
  std::filesystem::remove(dir / "a/checksums.json");  // as PyTorch writes it
  EXPECT_LT(growth([&] { load(state, dir / "a"); }), kMost);
}

/// Each of three ranks takes columns of the rows that four have written, one at a time since they
/// are threads of one process.
TEST(Memory, OfALoadOnAnotherMeshIsABuffer) {
  const TempDir dir;
  run_ranks(4, [&](int rank) {
    const at::Tensor mine = at::full({kRows / 4, kColumns}, rank, at::kFloat);
    save({{"w", from_local(mine, init_device_mesh("dp=4"), {Shard(0)})}}, dir / "a");
  });
  run_ranks(3, [&](int rank) {
    const DeviceMesh mesh = init_device_mesh("tp=3");
    const int64_t columns = rank < 2 ? 342 : 340;
    const at::Tensor mine = at::ones({kRows, columns});
    State state = {{"w", from_local(mine, mesh, {Shard(1)})}};
    const auto work = [&] { load(state, dir / "a"); };
    if (rank == 0) {
      EXPECT_LT(growth(work), 3 * kMost);
    } else {
      work();
    }
    EXPECT_EQ(mine.sum().item<double>(), 6.0 * kRows / 4 * columns);
  });
}

/// What was saved past the page cache comes from the device: each byte once, though it is verified
/// and copied, and whatever shards it goes to. Where the file system has no device, nothing is.
TEST(Load, OnAnotherMeshReadsEveryByteFromTheDeviceOnce) {
  const TempDir dir;
  constexpr int64_t kBytes = kRows * kColumns * 4;
  run_ranks(2, [&](int rank) {
    const at::Tensor mine = at::full({kRows / 2, kColumns}, rank, at::kFloat);
    save({{"w", from_local(mine, init_device_mesh("dp=2"), {Shard(0)})}}, dir / "a");
  });
  const int64_t before = test::proc_number("io", "read_bytes:");
  run_ranks(2, [&](int) {
    const DeviceMesh mesh = init_device_mesh("tp=2");
    State state = {{"w", from_local(at::zeros({kRows, kColumns / 2}), mesh, {Shard(1)})}};
    load(state, dir / "a");
  });
  const int64_t read = test::proc_number("io", "read_bytes:") - before;
  EXPECT_LE(read, kBytes + kBytes / 50);
  RecordProperty("read_bytes", std::to_string(read));
}

}  // namespace memory_test
}  // namespace tessera
