#include "tessera/module/state.h"

#include <gtest/gtest.h>
#include <torch/nn/modules/batchnorm.h>

#include "tessera/base/errors.h"
#include "tessera/comm/threads.h"
#include "tessera/fsdp/fully_shard.h"
#include "tessera/module/distribute_module.h"
#include "tessera/observe/recorder.h"
#include "tests/fsdp/models.h"

namespace tessera {
namespace state_test {

using comm::init_device_mesh;
using comm::run_ranks;
using test::layers_of;
using test::make_mlp;

TEST(FullStateDict, IsThatOfOneRank) {
  run_ranks(3, [](int rank) {
    const DeviceMesh mesh = init_device_mesh("dp=3");
    auto plain = make_mlp({4, 7, 2});
    auto net = make_mlp({4, 7, 2});
    net->push_back(torch::nn::BatchNorm1d(2));
    fully_shard(*net, mesh);
    const FullStateDict state = full_state_dict(*net);
    EXPECT_EQ(state.size(), 4u + 5u);
    for (const auto& item : plain->named_parameters()) {
      EXPECT_TRUE(at::equal(state.at(item.key()), item.value().detach())) << item.key();
    }
    EXPECT_TRUE(at::equal(state.at("3.running_var"), at::ones({2})));
    const FullStateDict first = full_state_dict(*net, {.rank0_only = true});
    EXPECT_EQ(first.size(), rank == 0 ? state.size() : 0);
    EXPECT_EQ(gathered_memory(mesh).bytes, 0);
  });
}

/// Saved from one layout, loaded into others, also of tensor parallelism under fully_shard.
TEST(FullStateDict, LoadsIntoAnyLayout) {
  run_ranks(4, [](int) {
    const DeviceMesh mesh = init_device_mesh("dp=2,tp=2");
    auto source = make_mlp({4, 7, 2}, /*seed=*/50);
    fully_shard(*source, mesh);
    const FullStateDict state = full_state_dict(*source);
    const auto loads = [&](torch::nn::Sequential net) {
      load_full_state_dict(*net, state);
      const FullStateDict got = full_state_dict(*net);
      for (const auto& [name, tensor] : state) EXPECT_TRUE(at::equal(got.at(name), tensor)) << name;
    };
    loads(make_mlp({4, 7, 2}));
    auto sharded = make_mlp({4, 7, 2});
    fully_shard(*sharded, mesh["dp"]);
    unshard(*sharded);  // what was gathered is no longer right
    loads(sharded);
    const torch::NoGradGuard no_grad;
    const at::Tensor x = at::ones({3, 4}, at::kDouble);
    const at::Tensor loaded = sharded->forward(x);
    const at::Tensor expected = source->forward(x);
    // Not bit by bit: the offset of a weight in gathered memory may decide which kernel multiplies
    // it.
    EXPECT_TRUE(at::allclose(loaded, expected, 1e-14, 1e-14)) << loaded - expected;
    auto sharded_twice = make_mlp({4, 7, 2});
    distribute_(layers_of(sharded_twice)[0]->weight, mesh["tp"], {Shard(0)});
    distribute_module(*sharded_twice, mesh["tp"]);
    fully_shard(*sharded_twice, mesh["dp"]);
    loads(sharded_twice);
  });
}

/// The first rank has the state and sends each its parts; buffers too.
TEST(FullStateDict, LoadsFromTheFirstRankAlone) {
  run_ranks(4, [](int rank) {
    const DeviceMesh mesh = init_device_mesh("dp=2,tp=2");
    const auto make = [](uint64_t seed) {
      auto net = make_mlp({4, 7, 2}, seed);
      net->push_back(torch::nn::BatchNorm1d(2));
      return net;
    };
    auto source = make(50);
    source->named_buffers()["3.running_mean"].fill_(5);
    const FullStateDict state = full_state_dict(*source);
    const auto loads = [&](torch::nn::Sequential net) {
      load_full_state_dict(*net, rank == 0 ? state : FullStateDict(), {.rank0_only = true});
      const FullStateDict got = full_state_dict(*net);
      for (const auto& [name, tensor] : state) EXPECT_TRUE(at::equal(got.at(name), tensor)) << name;
    };
    auto replicas = make(1);
    fully_shard(*replicas, mesh);
    loads(replicas);
    auto sharded_twice = make(1);
    distribute_(layers_of(sharded_twice)[0]->weight, mesh["tp"], {Shard(0)});
    distribute_module(*sharded_twice, mesh["tp"]);
    fully_shard(*sharded_twice, mesh["dp"]);
    loads(sharded_twice);
    // What the first rank finds wrong, all ranks throw.
    FullStateDict less = state;
    less.erase("0.bias");
    try {
      load_full_state_dict(*replicas, rank == 0 ? less : FullStateDict(), {.rank0_only = true});
      ADD_FAILURE() << "a state that lacks a tensor was loaded";
    } catch (const InvalidArgument& error) {
      EXPECT_NE(std::string(error.what()).find("lacks 0.bias"), std::string::npos) << error.what();
    }
  });
}

/// The tensors where they lie, and from one layout into another.
TEST(ShardedState, SharesMemoryAndLoadsIntoAnyLayout) {
  run_ranks(4, [](int) {
    const DeviceMesh mesh = init_device_mesh("dp=2,fs=2");
    auto source = make_mlp({4, 7, 2}, 50);
    source->push_back(torch::nn::BatchNorm1d(2));
    fully_shard(*source, mesh);
    const FullStateDict want = full_state_dict(*source);
    comm::Recorder recorder(*comm::current_world());
    const NamedTensors state = sharded_state_dict(*source);
    EXPECT_EQ(recorder.count(), 0);
    EXPECT_EQ(sharding(state.at("0.weight")).placements_text(), "R,S0");
    EXPECT_FALSE(state.at("0.weight").requires_grad());
    EXPECT_TRUE(to_local(state.at("0.weight"))
                    .is_alias_of(to_local(layers_of(source)[0]->weight.detach())));
    auto other = make_mlp({4, 7, 2});
    other->push_back(torch::nn::BatchNorm1d(2));
    fully_shard(*other, mesh.flatten({"dp", "fs"}, "all"));
    load_sharded_state_dict(*other, state);
    for (const auto& [name, tensor] : full_state_dict(*other)) {
      EXPECT_TRUE(at::equal(want.at(name), tensor)) << name;
    }
    NamedTensors wrong = state;
    wrong["0.bias"] = at::ones({7});
    EXPECT_THROW(load_sharded_state_dict(*other, wrong), InvalidArgument);
    wrong.erase("0.bias");
    EXPECT_THROW(load_sharded_state_dict(*other, wrong), InvalidArgument);
  });
}

TEST(FullStateDict, OfAnotherModuleIsRefusedBeforeAnythingChanges) {
  run_ranks(2, [](int) {
    const DeviceMesh mesh = init_device_mesh("dp=2");
    auto net = make_mlp({4, 7, 2});
    fully_shard(*net, mesh);
    const FullStateDict before = full_state_dict(*net);
    FullStateDict state = full_state_dict(*make_mlp({4, 7, 2}, /*seed=*/50));
    FullStateDict larger = state;
    larger["0.weight"] = at::ones({8, 4});
    EXPECT_THROW(load_full_state_dict(*net, larger), InvalidArgument);
    state.erase("2.bias");
    EXPECT_THROW(load_full_state_dict(*net, state), InvalidArgument);
    state["2.bias"] = at::ones({2});
    state["other"] = at::ones({2});
    EXPECT_THROW(load_full_state_dict(*net, state), InvalidArgument);
    for (const auto& [name, tensor] : full_state_dict(*net))
      EXPECT_TRUE(at::equal(before.at(name), tensor));
  });
}

}  // namespace state_test
}  // namespace tessera
