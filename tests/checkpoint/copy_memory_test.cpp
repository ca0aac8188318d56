#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "tessera/checkpoint/copy_stored.h"
#include "tessera/checkpoint/save.h"
#include "tessera/checkpoint/stored/stored_box.h"
#include "tessera/comm/threads.h"
#include "tessera/dtensor/dtensor.h"
#include "tests/checkpoint/memory_growth.h"
#include "tests/support_pure/temp_dir.h"

namespace tessera::checkpoint {
namespace copy_memory_test {

using comm::init_device_mesh;
using comm::run_ranks;
using test::growth_during;
using test::TempDir;

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
  constexpr std::string_view kAnonymous = "RssAnon:";
  EXPECT_LT(growth_during(kAnonymous, [&] { copy_resharded(*stored, dir / "b", 3, {}); }), kMost);
  EXPECT_LT(
      growth_during(kAnonymous, [&] { copy_as_safetensors(*stored, dir / "m.safetensors", {}); }),
      kMost);
  EXPECT_LT(growth_during(kAnonymous, [&] { copy_as_checkpoint(*stored, dir / "c", {}); }), kMost);
  const auto copied = open_stored(dir / "b", {});
  const auto& entry = std::get<dcp::TensorEntry>(copied->metadata().entries.at("w"));
  const at::Tensor edge =
      read_box(*copied, "w", entry, DType::f32, {{kRows / 2 - 1, 0}, {kRows / 2 + 1, 1}});
  EXPECT_TRUE(at::equal(edge, at::tensor({1.0F, 2.0F}).reshape({2, 1})));
}

}  // namespace copy_memory_test
}  // namespace tessera::checkpoint
