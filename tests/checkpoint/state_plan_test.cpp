#include <ATen/ops/arange.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/quantize_per_tensor.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include "tessera/base/errors.h"
#include "tessera/checkpoint/load.h"
#include "tessera/checkpoint/save.h"
#include "tessera/dtensor/dtensor.h"
#include "tests/checkpoint/shared_dir.h"
#include "tests/support/ranks.h"
#include "tests/support_pure/expect_error.h"

/// States that differ between ranks: what a save takes for copies, and what it refuses.
namespace tessera {
namespace state_plan_test {

using comm::init_device_mesh;
using test::expect_error;
using test::SharedDir;

at::Tensor sharded(const at::Tensor& full, const DeviceMesh& mesh, std::string_view placements) {
  return distribute_tensor(full, mesh, parse_placements(placements));
}

TEST(StatePlan, CopiesOnSubmeshesAreWrittenOnce) {
  const SharedDir dir("state_plan_test");
  test::run_ranks(4, [&](int) {
    const DeviceMesh mesh = init_device_mesh("dp=2,tp=2");
    const at::Tensor full = at::arange(21.0).reshape({7, 3});
    State state;
    for (const auto* placements : {"S0", "S1", "R", "SS0(2)"}) {
      state.emplace(placements, sharded(full, mesh["tp"], placements));
    }
    save(state, dir.path() / "c");
    State loaded;
    for (const auto& [name, value] : state) {
      loaded.emplace(name, sharded(at::zeros({7, 3}), mesh["tp"], "S1"));
    }
    load(loaded, dir.path() / "c");
    for (const auto& [name, value] : loaded) {
      EXPECT_TRUE(full_tensor(std::get<at::Tensor>(value)).equal(full)) << name;
    }
  });
  uint64_t bytes = 0;
  for (const auto& item : std::filesystem::directory_iterator(dir.path() / "c")) {
    if (item.path().extension() == ".distcp") bytes += item.file_size();
  }
  EXPECT_LT(bytes, 16u << 10);  // 4 tensors of 84 bytes in items of about 1 KiB, not 8
}

TEST(StatePlan, TensorsOfOneNameThatAreNotEqualAreRefused) {
  const SharedDir dir("state_plan_test");
  test::run_ranks(4, [&](int rank) {
    const DeviceMesh mesh = init_device_mesh("pp=2,tp=2");
    const double stage = rank < 2 ? 1 : 2;
    const State state = {{"layers.0", sharded(at::full({6}, stage), mesh["tp"], "S0")}};
    expect_error<InvalidArgument>([&] { save(state, dir.path() / "c"); },
                                  {"layers.0 is tp=2 : S0 : 6 on rank 0 and tp=2@2,3 : S0 : 6 on "
                                   "rank 2, and their elements are not equal"});
    const State other = {{"w", sharded(at::ones({6}), mesh["tp"], rank < 2 ? "S0" : "R")}};
    expect_error<InvalidArgument>([&] { save(other, dir.path() / "c"); },
                                  {"w is tp=2 : S0 : 6 on rank 0, and tp=2@2,3 : R : 6 on rank 2"});
  });
  EXPECT_FALSE(std::filesystem::exists(dir.path() / "c"));
}

TEST(StatePlan, ARankThatLacksATensorOfItsMeshIsNamed) {
  const SharedDir dir("state_plan_test");
  test::run_ranks(2, [&](int rank) {
    const DeviceMesh mesh = init_device_mesh("dp=2");
    const at::Tensor full = at::arange(6.0);
    const at::Tensor parts = sharded(full, mesh, "S0");
    const at::Tensor copies = sharded(full, mesh, "R");
    State state;
    if (rank == 1) state.emplace("w", parts);
    expect_error<InvalidArgument>([&] { save(state, dir.path() / "c"); },
                                  {"w is dp=2 : S0 : 6 on rank 1, and rank 0, which holds"});

    if (rank == 1) state["w"] = copies;  // of which one is enough
    save(state, dir.path() / "c");
    State loaded = {{"w", at::zeros({6})}};
    load(loaded, dir.path() / "c");
    EXPECT_TRUE(std::get<at::Tensor>(loaded.at("w")).equal(full));
  });
}

TEST(StatePlan, MessagesShowValuesAndTensors) {
  const SharedDir dir("state_plan_test");
  test::run_ranks(2, [&](int rank) {
    expect_error<InvalidArgument>(
        [&] {
          save({{"v", PlainValue(rank)}}, dir.path() / "c");
        },
        {"save: v is the value 0 on rank 0, and the value 1 on rank 1: what ranks do not share"});
    const auto dtype = rank == 0 ? at::kHalf : at::kFloat;
    expect_error<InvalidArgument>(
        [&] {
          save({{"t", at::ones({2}, dtype)}}, dir.path() / "c");
        },
        {"save: t is a plain tensor (f16 2) on rank 0, and a plain tensor (f32 2) on rank 1"});
    const at::Tensor quantized = at::quantize_per_tensor(at::ones({3}), 0.1, 0, at::kQUInt8);
    expect_error<NotSupported>([&] { save({{"q", quantized}}, dir.path() / "c"); }, {"save: q: "});
    save({{"q", at::ones({3})}}, dir.path() / "c");
    State state = {{"q", quantized}};
    expect_error<InvalidArgument>([&] { load(state, dir.path() / "c"); },
                                  {"q is a quantized tensor in the state"});
  });
}

}  // namespace state_plan_test
}  // namespace tessera
