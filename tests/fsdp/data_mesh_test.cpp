#include "tessera/fsdp/data_mesh.h"

#include <gtest/gtest.h>

#include "tessera/comm/threads.h"
#include "tessera/fsdp/flat_layout.h"

namespace tessera::fsdp {
namespace {

using comm::init_device_mesh;
using comm::run_ranks;

TEST(DataMesh, SaysWhatEachAxisDoes) {
  run_ranks(4, [](int rank) {
    const DeviceMesh mesh = init_device_mesh("dp=2,fs=2");
    const DataMesh both = DataMesh::both(mesh);
    EXPECT_EQ(both.kind(), DataMesh::Kind::both);
    EXPECT_EQ(both.to_text(), "replicate over dp=2, shard over fs=2");
    EXPECT_EQ(both.shard_size(), 2);
    EXPECT_EQ(both.replicate_size(), 2);
    EXPECT_EQ(both.size(), 4);
    EXPECT_EQ(both.shard_rank(), rank % 2);
    EXPECT_EQ(both.placements(1), (std::vector<Placement>{Replicate(), Shard(1)}));
    EXPECT_EQ(both.placements(kWhole), (std::vector<Placement>{Replicate(), Replicate()}));

    const DataMesh shard = DataMesh::shard(mesh["fs"]);
    EXPECT_EQ(shard.kind(), DataMesh::Kind::shard);
    EXPECT_EQ(shard.to_text(), "shard over fs=2");
    EXPECT_EQ(shard.replicate_group(), nullptr);

    const DataMesh replicate = DataMesh::replicate(mesh["dp"]);
    EXPECT_EQ(replicate.kind(), DataMesh::Kind::replicate);
    EXPECT_EQ(replicate.to_text(), "replicate over dp=2");
    EXPECT_EQ(replicate.shard_size(), 1);
    EXPECT_EQ(replicate.shard_group(), nullptr);
    EXPECT_EQ(replicate.placements(0), (std::vector<Placement>{Replicate()}));
    EXPECT_NE(replicate, DataMesh::shard(mesh["dp"]));
  });
}

std::vector<int64_t> sizes(const DataMesh& mesh, int64_t size) {
  std::vector<int64_t> out;
  for (const Interval& part : mesh.chunks(size)) out.push_back(part.size());
  return out;
}

/// The parts of every size, with empty ones at the end.
TEST(DataMesh, CutsAsChunkDoesAndPadsToTheLargest) {
  run_ranks(4, [](int) {
    using List = std::vector<int64_t>;
    const DeviceMesh mesh = init_device_mesh("dp=4");
    const DataMesh shard = DataMesh::shard(mesh);
    EXPECT_EQ(sizes(shard, 8), (List{2, 2, 2, 2}));
    EXPECT_EQ(sizes(shard, 10), (List{3, 3, 3, 1}));
    EXPECT_EQ(sizes(shard, 5), (List{2, 2, 1, 0}));
    EXPECT_EQ(sizes(shard, 2), (List{1, 1, 0, 0}));
    EXPECT_EQ(sizes(shard, 0), (List{0, 0, 0, 0}));
    for (int64_t size = 0; size < 20; ++size) {
      const auto parts = shard.chunks(size);
      EXPECT_EQ(parts.back().end, size);
      EXPECT_EQ(shard.padded_size(size), parts[0].size() * 4);
      EXPECT_GE(shard.padded_size(size), size);
    }
    const DataMesh replicate = DataMesh::replicate(mesh);
    EXPECT_EQ(sizes(replicate, 5), (List{5}));
    EXPECT_EQ(replicate.padded_size(5), 5);
  });
}

}  // namespace
}  // namespace tessera::fsdp
