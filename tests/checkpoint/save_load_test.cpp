#include <ATen/ops/arange.h>
#include <ATen/ops/full.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/batchnorm.h>

#include "tessera/base/errors.h"
#include "tessera/base/shape.h"
#include "tessera/checkpoint/chunks.h"
#include "tessera/checkpoint/load.h"
#include "tessera/checkpoint/save.h"
#include "tessera/comm/fake.h"
#include "tessera/dtensor/dtensor.h"
#include "tessera/fsdp/fully_shard.h"
#include "tessera/module/distribute_module.h"
#include "tessera/module/state.h"
#include "tests/checkpoint/shared_dir.h"
#include "tests/fsdp/models.h"
#include "tests/support/parts.h"
#include "tests/support/ranks.h"
#include "tests/support_pure/expect_error.h"
#include "tests/support_pure/random_shardings.h"

namespace tessera {
namespace save_load_test {

namespace fs = std::filesystem;
using comm::init_device_mesh;
using test::expect_error;
using test::make_mlp;
using test::SharedDir;

at::Tensor sharded(const at::Tensor& full, const DeviceMesh& mesh, std::string_view placements) {
  return distribute_tensor(full, mesh, parse_placements(placements));
}

at::Tensor numbers(std::vector<int64_t> shape, at::ScalarType dtype = at::kFloat) {
  return at::arange(numel_of(shape)).reshape(shape).to(dtype);
}

torch::nn::BatchNorm1d double_norm() {
  torch::nn::BatchNorm1d norm(2);
  norm->to(at::kDouble);
  return norm;
}

TEST(Questions, AreAnsweredForEveryPlacement) {
  test::run_ranks(2, [](int rank) {
    const DeviceMesh mesh = init_device_mesh("dp=2");
    const at::Tensor full = numbers({8, 3});
    const at::Tensor rows = sharded(full, mesh, "S0");
    ASSERT_EQ(chunk_list(rows).size(), 1u);
    EXPECT_EQ(chunk_list(rows)[0], (Box{{4 * rank, 0}, {4 * rank + 4, 3}}));
    EXPECT_EQ(write_items("rows", rows), chunk_list(rows));

    const at::Tensor strided = sharded(full, mesh, "SS0(2)");
    const auto boxes = chunk_list(strided);
    ASSERT_EQ(boxes.size(), 2u);
    EXPECT_EQ(boxes[1], (Box{{4 + 2 * rank, 0}, {6 + 2 * rank, 3}}));
    EXPECT_TRUE(at::equal(tensor_shard(strided, boxes[1].begin), full.narrow(0, 4 + 2 * rank, 2)));
    EXPECT_TRUE(tensor_shard(strided, boxes[1].begin).is_alias_of(to_local(strided)));
    EXPECT_THROW(tensor_shard(strided, std::vector<int64_t>{1, 0}), InvalidArgument);

    // Of a hundred replicated tensors, each is written by one rank, about half of them by each.
    int mine = 0;
    for (int i = 0; i < 100; ++i) {
      mine +=
          static_cast<int>(write_items("w" + std::to_string(i), sharded(full, mesh, "R")).size());
    }
    EXPECT_GT(mine, 25);
    EXPECT_LT(mine, 75);
    const at::Tensor total = at::tensor(mine);
    const at::Tensor sum = from_local(total, mesh, {Partial()});
    EXPECT_EQ(full_tensor(sum).item<int64_t>(), 100);

    EXPECT_THROW(chunk_list(from_local(full, mesh, {Partial()})), InvalidArgument);
    EXPECT_TRUE(chunk_list(sharded(at::zeros({0, 3}), mesh, "S0")).empty());
    EXPECT_EQ(chunk_list(sharded(at::zeros({}), mesh, "R")).size(), 1u);
    EXPECT_EQ(chunk_list(full)[0], (Box{{0, 0}, {8, 3}}));
  });
}

/// Saved on four ranks; loaded on four, two and one, placed otherwise, and as plain tensors.
TEST(Checkpoint, LoadsOnAnyMesh) {
  const SharedDir dir("any_mesh");
  const auto values = [] {
    return std::map<std::string, at::Tensor>{
        {"even", numbers({8, 6})},
        {"uneven", numbers({5, 7}, at::kBFloat16)},
        {"short", numbers({1, 3}, at::kLong)},
        {"empty", at::zeros({0, 4})},
        {"scalar", at::full({}, 2.5, at::kDouble)},
        {"flags", numbers({6}, at::kBool)},
        {"complex", numbers({4, 2}, at::kComplexFloat)},
        {"float8", numbers({3, 4}).to(at::kFloat8_e4m3fn)},
        {"wide", numbers({6, 10}).t()},
        {"plain", numbers({3, 3})},
    };
  };
  const std::map<std::string, std::string> saved_as = {
      {"even", "S0,S1"},   {"uneven", "S0,S0"}, {"short", "S0,R"},
      {"empty", "S0,R"},   {"scalar", "R,R"},   {"flags", "R,SS0(2)"},
      {"complex", "R,S0"}, {"float8", "S1,R"},  {"wide", "R,S0[3,7]"}};
  test::run_ranks(4, [&](int) {
    const DeviceMesh mesh = init_device_mesh("dp=2,tp=2");
    State state = {{"step", PlainValue(100)}, {"name", PlainValue("gpt")}};
    for (const auto& [name, value] : values()) {
      const auto placed = saved_as.find(name);
      state[name] = placed == saved_as.end() ? value : sharded(value, mesh, placed->second);
    }
    state["betas"] = PlainValue::tuple({0.9, 0.999});
    state["rng"] = PlainValue::bytes(std::string("\x00\xFF\x80", 3));
    save(state, dir / "ckpt");
  });
  const auto check = [&](const DeviceMesh* mesh, const std::vector<std::string>& placements) {
    State state = {{"step", PlainValue(0)},
                   {"name", PlainValue("")},
                   {"betas", PlainValue()},
                   {"rng", PlainValue()}};
    size_t next = 0;
    for (const auto& [name, value] : values()) {
      at::Tensor target = at::zeros_like(value);
      std::string as = placements.empty() ? "" : placements[next++ % placements.size()];
      if (value.dim() == 0 && !as.empty()) as = mesh->ndim() == 1 ? "R" : "R,R";
      if (value.dim() == 1 && as.find('1') != std::string::npos) as = "S0";
      state[name] = as.empty() ? target : sharded(target, *mesh, as);
    }
    EXPECT_TRUE(load(state, dir / "ckpt").empty());
    for (const auto& [name, value] : values()) {
      const auto& tensor = std::get<at::Tensor>(state.at(name));
      const at::Tensor got = is_dtensor(tensor) ? full_tensor(tensor) : tensor;
      EXPECT_TRUE(at::equal(got.to(at::kComplexDouble), value.to(at::kComplexDouble))) << name;
    }
    EXPECT_EQ(std::get<PlainValue>(state.at("step")).integer(), 100);
    EXPECT_EQ(std::get<PlainValue>(state.at("name")).text(), "gpt");
    EXPECT_EQ(std::get<PlainValue>(state.at("betas")), PlainValue::tuple({0.9, 0.999}));
    EXPECT_EQ(std::get<PlainValue>(state.at("rng")).blob(), std::string("\x00\xFF\x80", 3));
  };
  test::run_ranks(2, [&](int) {
    const DeviceMesh mesh = init_device_mesh("tp=2");
    check(&mesh, {"S0"});
    check(&mesh, {"S1", "SS0(2)"});
    check(&mesh, {"R"});
    check(nullptr, {});
  });
  test::run_ranks(4, [&](int) {
    const DeviceMesh mesh = init_device_mesh("a=2,b=2");
    check(&mesh, {"S0,R", "R,S0", "S0,S0"});
  });
  test::run_ranks(1, [&](int) { check(nullptr, {}); });
}

/// Random shardings, meshes that leave ranks out among them.
TEST(Checkpoint, OfAnySharding) {
  const SharedDir dir("random");
  test::Rng rng(17);
  for (int round = 0; round < 12; ++round) {
    const auto shape = test::random_shape(rng, 4, 200);
    const test::RandomOptions placed = {.partial = false, .stride = false, .dtype = false};
    const Sharding from = test::random_sharding(rng, test::random_mesh(rng, 3, 4), shape, placed);
    const Sharding to = test::random_sharding(rng, test::random_mesh(rng, 3, 4), shape, placed);
    const at::Tensor full = numbers(shape);
    const fs::path path = dir / ("round" + std::to_string(round));
    const auto on_mesh = [](const Sharding& as) {
      std::string text = as.mesh().to_text();
      return as.with_mesh(init_device_mesh(text));
    };
    test::run_ranks(4, [&](int) {
      const Sharding as = on_mesh(from);
      State state = {
          {"w", redistribute(distribute_tensor(
                                 full, as.mesh(),
                                 std::vector<Placement>(static_cast<size_t>(as.mesh().ndim()))),
                             as)}};
      save(state, path);
      const Sharding other = on_mesh(to);
      const at::Tensor target = redistribute(
          distribute_tensor(at::zeros_like(full), other.mesh(),
                            std::vector<Placement>(static_cast<size_t>(other.mesh().ndim()))),
          other);
      State loaded = {{"w", target}};
      load(loaded, path);
      if (other.mesh().contains_me()) {
        EXPECT_TRUE(at::equal(full_tensor(target), full)) << from.to_text() << " " << to.to_text();
      }
    });
  }
}

TEST(Checkpoint, OfFullyShardedModulesGathersNothing) {
  const SharedDir dir("fsdp");
  test::run_ranks(4, [&](int) {
    const DeviceMesh mesh = init_device_mesh("dp=2,tp=2");
    auto source = make_mlp({4, 7, 2}, 50);
    source->push_back(double_norm());
    fully_shard(*source, mesh);
    const FullStateDict want = full_state_dict(*source);
    State state;
    add_module(state, "model.", *source);
    save(state, dir / "ckpt");
    EXPECT_EQ(gathered_memory(mesh).bytes, 0);

    auto other = make_mlp({4, 7, 2});
    other->push_back(double_norm());
    distribute_(test::layers_of(other)[0]->weight, mesh["tp"], {Shard(1)});
    distribute_module(*other, mesh["tp"]);
    fully_shard(*other, mesh["dp"]);
    auto rows = make_mlp({4, 7, 2});
    rows->push_back(double_norm());
    fully_shard(*rows, mesh["dp"]);
    unshard(*rows);  // what was gathered is no longer right
    for (auto& net : {other, rows}) {
      State loaded;
      add_module(loaded, "model.", *net);
      load(loaded, dir / "ckpt");
      for (const auto& [name, value] : full_state_dict(*net)) {
        EXPECT_TRUE(at::equal(value, want.at(name))) << name;
      }
    }
    const torch::NoGradGuard no_grad;
    const at::Tensor x = at::full({3, 4}, 0.5, at::kDouble);
    EXPECT_TRUE(at::allclose(rows->forward(x), source->forward(x), 1e-12, 1e-12));
  });
}

TEST(Load, ReportsEverythingThatDoesNotFitBeforeAnythingChanges) {
  const SharedDir dir("strict");
  test::run_ranks(2, [&](int) {
    const DeviceMesh mesh = init_device_mesh("dp=2");
    State saved = {{"a", numbers({4})},
                   {"b", sharded(numbers({4, 2}), mesh, "S0")},
                   {"extra", numbers({2})},
                   {"step", PlainValue(3)}};
    save(saved, dir / "ckpt");
    const at::Tensor a = at::zeros({4});
    State state = {{"a", a},
                   {"b", sharded(at::zeros({4, 3}), mesh, "S0")},
                   {"missing", at::zeros({1})},
                   {"step", at::zeros({})}};
    expect_error<InvalidArgument>(
        [&] { load(state, dir / "ckpt"); },
        {"lacks missing", "lacks extra", "b is 4x2 in the checkpoint and 4x3 in the state",
         "step is a value in the checkpoint, not a tensor"});
    EXPECT_EQ(a.sum().item<float>(), 0);

    State half = {{"a", a.to(at::kHalf)}, {"missing", at::full({1}, 7.0)}};
    LoadOptions options = {.allow_missing = true, .allow_unexpected = true};
    expect_error<InvalidArgument>([&] { load(half, dir / "ckpt", options); },
                                  {"a is f32 in the checkpoint and f16"});
    options.cast = true;
    const LoadReport report = load(half, dir / "ckpt", options);
    EXPECT_EQ(report.missing, std::vector<std::string>{"missing"});
    EXPECT_EQ(report.unexpected.size(), 3u);
    EXPECT_EQ(std::get<at::Tensor>(half.at("a")).sum().item<float>(), 6);
    EXPECT_EQ(std::get<at::Tensor>(half.at("missing")).item<float>(), 7);
  });
}

TEST(Save, SaysHowFarItIs) {
  const SharedDir dir("progress");
  test::run_ranks(2, [&](int) {
    std::vector<uint64_t> bytes;
    uint64_t whole = 0;
    SaveOptions options;
    options.on_progress = [&](uint64_t done, uint64_t total) {
      bytes.push_back(done);
      whole = total;
    };
    const DeviceMesh mesh = comm::init_device_mesh("dp=2");
    save({{"a", sharded(numbers({64, 64}), mesh, "S0")},
          {"b", sharded(numbers({64, 64}), mesh, "S0")}},
         dir / "ckpt", options);
    EXPECT_EQ(whole, 2 * 32 * 64 * 4);
    ASSERT_EQ(bytes.size(), 2U);
    EXPECT_GT(bytes[0], whole / 3);
    EXPECT_EQ(bytes[1], whole);
  });
}

// From rows of four ranks to columns of three, and to shards of two axes: each rank reads what it
// holds, once to check it and once to copy it, and nothing else.
TEST(Load, OnAnotherMeshReadsNoByteTwice) {
  const SharedDir dir("once");
  const at::Tensor full = numbers({12, 10});
  test::run_ranks(4, [&](int) {
    save({{"w", sharded(full, init_device_mesh("dp=4"), "S0")}}, dir / "a");
  });
  const std::vector<std::pair<std::string, std::string>> targets = {
      {"tp=3", "S1"}, {"dp=2,tp=2", "S1,S0"}, {"dp=2,tp=2", "R,SS0(2)"}, {"tp=1", "R"}};
  for (const auto& [mesh_text, placements] : targets) {
    const int ranks = DeviceMesh::parse(mesh_text).size();
    test::run_ranks(ranks, [&](int) {
      State state = {{"w", sharded(at::zeros({12, 10}), init_device_mesh(mesh_text), placements)}};
      const auto& tensor = std::get<at::Tensor>(state.at("w"));
      uint64_t last = 0;
      LoadOptions options;
      options.on_progress = [&](uint64_t bytes, uint64_t total) {
        EXPECT_GT(bytes, last);
        last = bytes;
        EXPECT_EQ(total, 2 * to_local(tensor).nbytes());
      };
      load(state, dir / "a", options);
      EXPECT_EQ(last, 2 * to_local(tensor).nbytes());
      EXPECT_TRUE(at::equal(full_tensor(tensor), full));
    });
  }
}

/// An error on one rank is an error on all of them: no rank loads a part.
TEST(Load, OfOneRankThatDoesNotFitChangesNoRank) {
  const SharedDir dir("one_rank");
  test::run_ranks(2, [&](int rank) {
    const DeviceMesh mesh = init_device_mesh("dp=2");
    State saved = {{"a", sharded(numbers({4}), mesh, "S0")}, {"b", numbers({3})}};
    save(saved, dir / "ckpt");
    const at::Tensor a = sharded(at::zeros({4}), mesh, "S0");
    State state = {{"a", a}, {"b", at::zeros({rank == 1 ? 2 : 3})}};
    const auto attempt = [&] { load(state, dir / "ckpt"); };
    if (rank == 1) {
      expect_error<InvalidArgument>(attempt, {"b is 3"});
    } else {
      expect_error<PeerError>(attempt, {"rank 1", "b is 3"});
    }
    EXPECT_EQ(to_local(a).sum().item<float>(), 0);
  });
}

TEST(Save, InAFakeWorldIsRefused) {
  const SharedDir dir("fake");
  const comm::WorldGuard guard(comm::fake_world(0, 4));
  State state = {{"w", numbers({2})}};
  EXPECT_THROW(save(state, dir / "ckpt"), NotSupported);
  EXPECT_THROW(load(state, dir / "ckpt"), NotSupported);
}

TEST(Save, OfRanksWithDifferentNamesKeepsThemAll) {
  const SharedDir dir("stages");
  test::run_ranks(2, [&](int rank) {
    const std::string own = "stage" + std::to_string(rank);
    State state = {{own, at::full({3}, rank + 1.0)}, {"shared", numbers({2})}};
    save(state, dir / "ckpt");
    State loaded = {{"stage" + std::to_string(1 - rank), at::zeros({3})}};
    load(loaded, dir / "ckpt", {.allow_unexpected = true});
    EXPECT_EQ(std::get<at::Tensor>(loaded.begin()->second).sum().item<double>(), 3 * (2 - rank));
    State contradiction = {{"x", PlainValue(rank)}};
    expect_error<InvalidArgument>([&] { save(contradiction, dir / "ckpt"); },
                                  {"x is", "on rank 0", "on rank 1"});
  });
}

}  // namespace save_load_test
}  // namespace tessera
