// Training on several ranks ends where one rank with the whole batch ends.
#include "tests/fsdp/training.h"

#include <gtest/gtest.h>

namespace tessera::test {
namespace training_test {

/// MLP, GPT and mixture of experts, with SGD and with AdamW.
void all_train_as_one_rank(const std::vector<std::string>& meshes, const ShardModel& shard) {
  for (const Subject& subject : {mlp_subject(), gpt_subject(), moe_subject()}) {
    trains_as_one_rank(subject, sgd(), meshes, shard);
    trains_as_one_rank(subject, adamw(), meshes, shard);
  }
}

TEST(FullyShardTraining, ShardsTrainAsOneRank) {
  all_train_as_one_rank({"dp=1", "dp=2", "dp=3", "dp=4", "dp=8"}, by_parts(kUnmerged));
}

/// Models as small as these are one merged group from the second step on.
TEST(FullyShardTraining, MergedShardsTrainAsOneRank) {
  all_train_as_one_rank({"dp=2", "dp=3", "dp=4", "dp=8"}, by_parts());
}

TEST(FullyShardTraining, ReplicasOfShardsTrainAsOneRank) {
  all_train_as_one_rank({"dp=2,fs=2", "dp=2,fs=4"}, by_parts(kUnmerged));
  all_train_as_one_rank({"dp=2,fs=3"}, by_parts());
}

TEST(FullyShardTraining, AxesOfOneRankChangeNothing) {
  trains_as_one_rank(mlp_subject(), adamw(), {"dp=1,fs=2", "dp=2,fs=1"}, by_parts());
}

TEST(FullyShardTraining, ReplicasTrainAsOneRank) {
  all_train_as_one_rank({"dp=2", "dp=3"}, replicas_by_parts(kUnmerged));
  all_train_as_one_rank({"dp=4", "dp=8"}, replicas_by_parts());
}

TEST(FullyShardTraining, WholeModelsInOneGroupTrainAsOneRank) {
  all_train_as_one_rank({"dp=3"}, [](Model& model, const DeviceMesh& mesh) {
    fully_shard(*model.module, mesh);
    EXPECT_EQ(sharded_groups(*model.module).size(), 1u);
  });
}

TEST(FullyShardTraining, ParametersKeptAfterForwardTrainAsOneRank) {
  all_train_as_one_rank({"dp=2", "dp=2,fs=2"},
                        by_parts({.reshard_after_forward = false, .merge_bytes = 0}));
}

TEST(FullyShardTraining, AllLetGoAfterForwardTrainAsOneRank) {
  all_train_as_one_rank({"dp=3"}, by_parts({.reshard_after_forward = true, .merge_bytes = 0}));
}

/// Parameters large enough to be gathered where they lie, in even and uneven parts.
TEST(FullyShardTraining, LargeLayersTrainAsOneRank) {
  trains_as_one_rank(mlp_subject({64, 96, 65, 70}), sgd(), {"dp=2", "dp=3", "dp=2,fs=2"},
                     by_parts());
}

TEST(FullyShardTraining, OtherDimsAreShardedUnevenlyToo) {
  const FullyShardOptions options = {.shard_dim = [](const std::string&, const at::Tensor& t) {
    return std::optional<int>(t.dim() == 2 ? 1 : 0);
  }};
  all_train_as_one_rank({"dp=2", "dp=3", "dp=4"}, by_parts(options));
}

}  // namespace training_test
}  // namespace tessera::test
