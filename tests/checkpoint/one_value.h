#pragma once

#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <string>
#include <vector>

#include "tessera/base/text.h"
#include "tessera/checkpoint/load.h"
#include "tessera/comm/world.h"
#include "tessera/dtensor/dtensor.h"

/// A small state of one value, and the value that a checkpoint of it has.
namespace tessera::test {

namespace fs = std::filesystem;

inline State state_of(double value) {
  const int ranks = comm::current_world()->size();
  const DeviceMesh mesh = comm::init_device_mesh(join_text("dp=", ranks));
  return {{"w", distribute_tensor(at::full({6, 3}, value), mesh, {Shard(0)})},
          {"plain", at::full({5}, value)},
          {"value", PlainValue(value)}};
}

/// The value that all of a checkpoint has; it is whole and of one save.
inline double value_in(const fs::path& path) {
  State state = {{"w", at::zeros({6, 3})}, {"plain", at::zeros({5})}, {"value", PlainValue()}};
  load(state, path, {.allow_unexpected = true});
  const double value = std::get<PlainValue>(state.at("value")).real();
  EXPECT_TRUE(at::equal(std::get<at::Tensor>(state.at("w")), at::full({6, 3}, value)));
  EXPECT_TRUE(at::equal(std::get<at::Tensor>(state.at("plain")), at::full({5}, value)));
  return value;
}

inline std::vector<std::string> names_in(const fs::path& directory) {
  std::vector<std::string> out;
  for (const auto& item : fs::directory_iterator(directory)) {
    out.push_back(item.path().filename().string());
  }
  std::ranges::sort(out);
  return out;
}

}  // namespace tessera::test
