// Tensor parallelism and fully_shard on two axes of one mesh, in either order.
#include "tessera/base/errors.h"
#include "tessera/fsdp/fully_shard.h"
#include "tests/parallel/parallel_cases.h"

namespace tessera::test {
namespace two_dims_test {

enum class First : uint8_t { tensor_parallel, fully_shard };

ParallelPlan plan_of_block() {
  return {{"attention.qkv", ColwiseParallel({.parts = 3, .heads = kHeads})},
          {"attention.out", RowwiseParallel()},
          {"mlp.up", ColwiseParallel()},
          {"mlp.down", RowwiseParallel()}};
}

/// Two groups: the MLP and the rest.
void shard_groups(blocks::GptBlock& net, const DeviceMesh& mesh,
                  const FullyShardOptions& options = {}) {
  fully_shard(*net->mlp, mesh, options);
  fully_shard(*net, mesh, options);
}

void make_both(blocks::GptBlock& net, const DeviceMesh& mesh, First first,
               const FullyShardOptions& options = {}) {
  if (first == First::fully_shard) shard_groups(net, mesh["dp"], options);
  parallelize_module(*net, mesh["tp"], plan_of_block());
  if (first == First::tensor_parallel) shard_groups(net, mesh["dp"], options);
}

blocks::GptBlock make_block() {
  blocks::GptBlock net(kWidth, kHeads, kHidden);
  set_parameters(*net, 9);
  return net;
}

/// Gradients of the first step and parameters after ten.
RunResults train_block(blocks::GptBlock net, const at::Tensor& x, const at::Tensor& target) {
  RunResults out =
      train(Instance{net.ptr(), [net](const auto& in) mutable { return net(in[0]); }}, x, target);
  out.erase("output");  // of this rank's part of the batch
  return out;
}

void trains_as_one_rank(const std::string& text, First first) {
  SCOPED_TRACE(text + (first == First::fully_shard ? ", fully_shard first" : ", plan first"));
  const at::Tensor x = test_numbers({6, kPlaces, kWidth}, 5);
  const at::Tensor target = test_numbers({6, kPlaces, kWidth}, 6);
  const RunResults expected = train_block(make_block(), x, target);
  test::run_ranks(DeviceMesh::parse(text).size(), [&](int) {
    const DeviceMesh mesh = comm::init_device_mesh(text);
    blocks::GptBlock net = make_block();
    make_both(net, mesh, first);
    const int64_t parts = mesh.size(mesh.axis("dp"));
    const auto mine = [&](const at::Tensor& whole) {
      const at::Tensor part = whole.chunk(parts)[mesh.local_rank("dp")].contiguous();
      return distribute_tensor(part, mesh["tp"], {Replicate()});
    };
    expect_same(train_block(net, mine(x), mine(target)), expected);
    EXPECT_EQ(gathered_memory(mesh).bytes, 0);
  });
}

TEST(TwoDims, EitherOrderTrainsAsOneRank) {
  for (const char* text : {"dp=2,tp=2", "dp=3,tp=2", "dp=2,tp=3", "tp=2,dp=2", "dp=1,tp=2"}) {
    for (const First first : {First::tensor_parallel, First::fully_shard}) {
      trains_as_one_rank(text, first);
    }
  }
}

TEST(TwoDims, BothOrdersShardAlike) {
  test::run_ranks(4, [](int) {
    const DeviceMesh mesh = comm::init_device_mesh("dp=2,tp=2");
    blocks::GptBlock one = make_block(), other = make_block();
    make_both(one, mesh, First::tensor_parallel);
    make_both(other, mesh, First::fully_shard);
    const auto expected = one->named_parameters();
    for (const auto& item : other->named_parameters()) {
      EXPECT_EQ(sharding(item.value()), sharding(expected[item.key()])) << item.key();
      EXPECT_TRUE(at::equal(to_local(item.value()), to_local(expected[item.key()]))) << item.key();
    }
    EXPECT_EQ(sharded_groups(*other).size(), 2U);
  });
}

/// A group whose parameters are in part tensor-parallel; the rest stay as fully_shard left them.
TEST(TwoDims, APartOfAGroupIsParallelized) {
  test::run_ranks(4, [](int) {
    const DeviceMesh mesh = comm::init_device_mesh("dp=2,tp=2");
    blocks::GptBlock net = make_block();
    const at::Tensor before = net->attention->qkv->weight.detach().clone();
    fully_shard(*net, mesh["dp"]);
    parallelize_module(*net->mlp, mesh["tp"], {{"up", ColwiseParallel()}});
    parallelize_module(*net->mlp, mesh["tp"], {{"down", RowwiseParallel()}});
    const auto parameters = net->named_parameters();
    EXPECT_EQ(sharding(parameters["mlp.up.weight"]).placements_text(), "S0#1,S0#0");
    EXPECT_EQ(sharding(parameters["mlp.down.weight"]).placements_text(), "S0,S1");
    EXPECT_EQ(sharding(parameters["attention.qkv.weight"]).placements_text(), "S0");
    EXPECT_TRUE(at::equal(full_tensor(parameters["attention.qkv.weight"].detach()), before));
  });
}

/// Values are kept in the dtype of the shards, not in that of computing.
TEST(TwoDims, MixedPrecisionKeepsTheValuesOfTheShards) {
  test::run_ranks(4, [](int) {
    const DeviceMesh mesh = comm::init_device_mesh("dp=2,tp=2");
    blocks::GptBlock plain = make_block(), net = make_block();
    make_both(net, mesh, First::fully_shard, {.mp_policy = {.param_dtype = at::kBFloat16}});
    const auto expected = plain->named_parameters();
    for (const auto& item : net->named_parameters()) {
      EXPECT_TRUE(at::equal(full_tensor(item.value().detach()), expected[item.key()].detach()))
          << item.key();
    }
  });
}

TEST(TwoDims, ABadPlanOrMeshChangesNothing) {
  test::run_ranks(4, [](int) {
    const DeviceMesh mesh = comm::init_device_mesh("dp=2,tp=2");
    blocks::GptBlock net = make_block();
    shard_groups(net, mesh["dp"]);
    const auto expect_refused = [&](const DeviceMesh& over, const ParallelPlan& plan) {
      EXPECT_THROW(parallelize_module(*net, over, plan), InvalidArgument);
      for (const auto& item : net->named_parameters()) {
        EXPECT_EQ(device_mesh(item.value()), mesh["dp"]) << item.key();
      }
    };
    expect_refused(mesh["tp"], {{"mlp.up", ColwiseParallel()}, {"mlp.dwn", RowwiseParallel()}});
    expect_refused(mesh["dp"], {{"mlp.up", ColwiseParallel()}});
    net->mlp->parameters()[0].mutable_grad() = at::zeros_like(net->mlp->parameters()[0].detach());
    expect_refused(mesh["tp"], {{"mlp.up", ColwiseParallel()}});
  });
}

}  // namespace two_dims_test
}  // namespace tessera::test
