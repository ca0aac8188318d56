#include "tessera/fsdp/buffers/data_mesh.h"

#include <gtest/gtest.h>

#include "tessera/base/errors.h"
#include "tessera/comm/threads.h"
#include "tessera/fsdp/buffers/flat_layout.h"

namespace tessera::fsdp {
namespace data_mesh_test {

using comm::init_device_mesh;
using comm::run_ranks;

TEST(MeshKinds, SayWhatEachAxisDoes) {
  run_ranks(4, [](int rank) {
    const DeviceMesh mesh = init_device_mesh("dp=2,fs=2");
    const HybridMesh hybrid(mesh);
    EXPECT_EQ(hybrid.to_text(), "replicate over dp=2, shard over fs=2");
    const DataMesh both(hybrid);
    EXPECT_EQ(both.shard_size(), 2);
    EXPECT_EQ(both.size(), 4);
    EXPECT_EQ(both.shard_rank(), rank % 2);
    EXPECT_EQ(both.placements(1), (std::vector<Placement>{Replicate(), Shard(1)}));
    EXPECT_EQ(both.placements(kWhole), (std::vector<Placement>{Replicate(), Replicate()}));

    EXPECT_EQ(ShardMesh(mesh["fs"]).to_text(), "shard over fs=2");
    const DataMesh shard(ShardMesh{mesh["fs"]});
    EXPECT_EQ(shard.replicate_group(), nullptr);

    EXPECT_EQ(ReplicateMesh(mesh["dp"]).to_text(), "replicate over dp=2");
    const DataMesh replicate(ReplicateMesh{mesh["dp"]});
    EXPECT_EQ(replicate.shard_size(), 1);
    EXPECT_EQ(replicate.shard_group(), nullptr);
    EXPECT_EQ(replicate.placements(0), (std::vector<Placement>{Replicate()}));
    EXPECT_NE(replicate, DataMesh(ShardMesh(mesh["dp"])));
  });
}

TEST(MeshKinds, RefuseMeshesOfOtherShapes) {
  run_ranks(2, [](int rank) {
    const DeviceMesh mesh = init_device_mesh("dp=2,fs=1");
    EXPECT_THROW(ShardMesh{mesh}, InvalidArgument);
    EXPECT_THROW(ReplicateMesh{mesh}, InvalidArgument);
    EXPECT_THROW(HybridMesh{mesh["dp"]}, InvalidArgument);
    EXPECT_THROW(ShardMesh{DeviceMesh::parse("dp=2")}, InvalidArgument);
    EXPECT_NO_THROW(ShardMesh{mesh["fs"]}) << rank;
  });
}

template <class Mesh>
std::vector<int64_t> sizes(const Mesh& mesh, int64_t size) {
  std::vector<int64_t> out;
  for (const Interval& part : mesh.chunks(size)) out.push_back(part.size());
  return out;
}

/// The parts of every size, with empty ones at the end.
TEST(MeshKinds, ShardAsChunkDoesAndPadToTheLargest) {
  run_ranks(4, [](int) {
    using List = std::vector<int64_t>;
    const ShardMesh shard(init_device_mesh("dp=4"));
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
    const HybridMesh hybrid(init_device_mesh("dp=2,fs=2"));
    EXPECT_EQ(sizes(hybrid, 5), (List{3, 2}));
    EXPECT_EQ(hybrid.padded_size(5), 6);
  });
}

}  // namespace data_mesh_test
}  // namespace tessera::fsdp
