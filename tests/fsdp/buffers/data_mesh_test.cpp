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

}  // namespace data_mesh_test
}  // namespace tessera::fsdp
