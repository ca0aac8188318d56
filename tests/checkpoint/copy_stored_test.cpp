#include "tessera/checkpoint/copy_stored.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "tessera/base/errors.h"
#include "tessera/checkpoint/load.h"
#include "tessera/checkpoint/save.h"
#include "tessera/checkpoint/save_safetensors.h"
#include "tessera/checkpoint/stored/stored_box.h"
#include "tessera/comm/threads.h"
#include "tessera/dtensor/dtensor.h"
#include "tests/support_pure/expect_error.h"
#include "tests/support_pure/temp_dir.h"

namespace tessera::checkpoint {
namespace copy_stored_test {

namespace fs = std::filesystem;
using comm::init_device_mesh;
using comm::run_ranks;
using test::expect_error;
using test::TempDir;

/// Chunks of every kind: several boxes a rank, uneven and empty parts, no dims, no elements.
State sample(const DeviceMesh& mesh) {
  const auto placed = [&](const at::Tensor& full, const Placement& placement) {
    return distribute_tensor(full, mesh, {placement});
  };
  return {{"rows", placed(at::arange(35.0).reshape({5, 7}), Shard(0))},
          {"columns", placed(at::arange(24).reshape({2, 3, 4}), Shard(2))},
          {"strided", placed(at::arange(12.0).to(at::kBFloat16), StridedShard(0, 2))},
          {"short", placed(at::ones({1, 2}), Shard(0))},
          {"scalar", at::full({}, 2.5, at::kDouble)},
          {"empty", at::zeros({0, 4})},
          {"flags", at::arange(5).gt(2)},
          {"step", PlainValue(7)}};
}

State plain_sample() {
  State out;
  run_ranks(1, [&](int) {
    for (auto& [name, value] : sample(init_device_mesh("dp=1"))) {
      const auto* tensor = std::get_if<at::Tensor>(&value);
      if (tensor == nullptr) {
        out.emplace(name, PlainValue());
      } else {
        out.emplace(name, is_dtensor(*tensor) ? full_tensor(*tensor) : *tensor);
      }
    }
  });
  return out;
}

void expect_sample_in(const fs::path& path, bool with_values) {
  const State expected = plain_sample();
  State found;
  for (const auto& [name, value] : expected) {
    if (const auto* tensor = std::get_if<at::Tensor>(&value)) {
      found.emplace(name, at::zeros_like(*tensor));
    } else if (with_values) {
      found.emplace(name, PlainValue());
    }
  }
  EXPECT_TRUE(load(found, path).empty());
  for (const auto& [name, value] : expected) {
    if (const auto* tensor = std::get_if<at::Tensor>(&value)) {
      EXPECT_TRUE(at::equal(*tensor, std::get<at::Tensor>(found.at(name)))) << name;
    }
  }
  if (with_values) {
    EXPECT_EQ(std::get<PlainValue>(found.at("step")).integer(), 7);
  }
}

TEST(CopyStored, ToEveryFormatAndAnyNumberOfRanks) {
  const TempDir dir;
  run_ranks(3, [&](int) { save(sample(init_device_mesh("dp=3")), dir / "a"); });
  const auto stored = open_stored(dir / "a", {});
  uint64_t last = 0;
  uint64_t all = 0;
  const CopyOptions options{.on_progress = [&](uint64_t bytes, uint64_t total) {
    EXPECT_LE(last, bytes);
    last = bytes;
    all = total;
  }};
  copy_as_checkpoint(*stored, dir / "b", options);
  EXPECT_EQ(last, all);
  EXPECT_GT(all, 0U);
  expect_sample_in(dir / "b", true);
  for (const int ranks : {1, 2, 5}) {
    const fs::path to = dir / ("parts" + std::to_string(ranks));
    copy_resharded(*stored, to, ranks, {});
    expect_sample_in(to, true);
    EXPECT_TRUE(fs::exists(to / join_text("__", ranks - 1, "_0.distcp")));
  }
  expect_error<NotSupported>([&] { copy_as_safetensors(*stored, dir / "m.safetensors", {}); },
                             {"step is not a tensor"});
  EXPECT_FALSE(fs::exists(dir / "m.safetensors"));
  copy_as_safetensors(*stored, dir / "m.safetensors", {.tensors_only = true});
  expect_sample_in(dir / "m.safetensors", false);
  const auto back = open_stored(dir / "m.safetensors", {});
  copy_resharded(*back, dir / "again", 4, {});
  expect_sample_in(dir / "again", false);
}

TEST(CopyStored, DamageIsFoundAndNothingIsWritten) {
  const TempDir dir;
  run_ranks(2, [&](int) {
    save({{"w", distribute_tensor(at::arange(4000.0), init_device_mesh("dp=2"), {Shard(0)})}},
         dir / "a");
  });
  std::fstream(dir / "a/__1_0.distcp", std::ios::in | std::ios::out).seekp(900).put('!');
  const auto stored = open_stored(dir / "a", {});
  expect_error<InvalidArgument>([&] { copy_resharded(*stored, dir / "b", 3, {}); },
                                {"__1_0.distcp is damaged"});
  expect_error<InvalidArgument>([&] { copy_as_safetensors(*stored, dir / "b.safetensors", {}); },
                                {"__1_0.distcp is damaged"});
  EXPECT_FALSE(fs::exists(dir / "b") || fs::exists(dir / "b.safetensors"));
}

TEST(CopyStored, PiecesFollowEachOtherInMemory) {
  std::vector<std::string> pieces;
  for_each_piece({{1, 0, 2}, {4, 3, 6}}, 8, [&](const Box& box) {
    pieces.push_back(list_text(box.begin) + "-" + list_text(box.end));
  });
  EXPECT_EQ(pieces, (std::vector<std::string>{"1,0,2-2,2,6", "1,2,2-2,3,6", "2,0,2-3,2,6",
                                              "2,2,2-3,3,6", "3,0,2-4,2,6", "3,2,2-4,3,6"}));
}

}  // namespace copy_stored_test
}  // namespace tessera::checkpoint
