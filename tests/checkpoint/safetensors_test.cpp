#include "tessera/files/safetensors.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/zeros_like.h>
#include <gtest/gtest.h>

#include <fstream>

#include "tessera/base/errors.h"
#include "tessera/base/shape.h"
#include "tessera/checkpoint/load.h"
#include "tessera/checkpoint/save_safetensors.h"
#include "tessera/dtensor/dtensor.h"
#include "tests/checkpoint/shared_dir.h"
#include "tests/support_pure/expect_error.h"

namespace tessera {
namespace {

using comm::init_device_mesh;
using test::expect_error;
using test::SharedDir;

std::map<std::string, at::Tensor> values() {
  const auto numbers = [](std::vector<int64_t> shape, at::ScalarType dtype) {
    return at::arange(numel_of(shape)).reshape(shape).to(dtype);
  };
  return {{"a.weight", numbers({5, 6}, at::kFloat)},
          {"b.weight", numbers({7, 4}, at::kBFloat16)},
          {"c", numbers({}, at::kLong)},
          {"d", numbers({0, 2}, at::kFloat)}};
}

void save_placed(const std::string& placements, const std::filesystem::path& path,
                 const SaveSafetensorsOptions& options) {
  const DeviceMesh mesh = init_device_mesh("tp=2");
  State state;
  for (const auto& [name, value] : values()) {
    state[name] =
        value.dim() == 0 ? value : distribute_tensor(value, mesh, parse_placements(placements));
  }
  save_safetensors(state, path, options);
}

void check(const std::filesystem::path& path) {
  for (const std::string placements : {"", "S0", "S1", "SS0(2)"}) {
    State state;
    for (const auto& [name, value] : values()) {
      const at::Tensor target = at::zeros_like(value);
      state[name] =
          placements.empty() || value.dim() == 0
              ? target
              : distribute_tensor(target, init_device_mesh("tp=2"), parse_placements(placements));
    }
    EXPECT_TRUE(load(state, path).empty());
    for (const auto& [name, value] : values()) {
      const auto& tensor = std::get<at::Tensor>(state.at(name));
      EXPECT_TRUE(at::equal(is_dtensor(tensor) ? full_tensor(tensor) : tensor, value)) << name;
    }
  }
}

TEST(Safetensors, AreWrittenByAllRanksIntoOneFile) {
  const SharedDir dir("one_file");
  test::run_ranks(2, [&](int) {
    for (const std::string placements : {"S0", "S1", "R", "SS0(2)"}) {
      save_placed(placements, dir / "model.safetensors", {});
      check(dir / "model.safetensors");
    }
    const files::SafetensorsFile file(dir / "model.safetensors");
    EXPECT_EQ(file.metadata().at("format"), "pt");
    EXPECT_EQ(file.entries().size(), 4u);
  });
  EXPECT_FALSE(std::filesystem::exists(dir / ".model.safetensors.tessera-saving"));
}

TEST(Safetensors, OfManyBytesAreSeveralFilesWithAnIndex) {
  const SharedDir dir("index");
  test::run_ranks(2, [&](int rank) {
    save_placed("S0", dir / "model", {.max_file_bytes = 100});
    EXPECT_TRUE(std::filesystem::exists(dir / "model/model-00001-of-00002.safetensors"));
    EXPECT_TRUE(std::filesystem::exists(dir / "model/model.safetensors.index.json"));
    check(dir / "model");
    save_placed("S0", dir / "model", {});
    EXPECT_TRUE(std::filesystem::exists(dir / "model/model.safetensors"));
    EXPECT_FALSE(std::filesystem::exists(dir / "model/model-00001-of-00002.safetensors"));
    check(dir / "model");
    State state = {{"step", PlainValue(1)}};
    expect_error<NotSupported>([&] { save_safetensors(state, dir / "model"); }, {"step"});
    check(dir / "model");
    if (rank == 0) std::ofstream(dir / "model/config.json") << "{}";
    expect_error<Error>([&] { save_placed("S0", dir / "model", {}); }, {"config.json"});
  });
}

TEST(Safetensors, IndexMustAgreeWithItsFiles) {
  const SharedDir dir("bad_index");
  test::run_ranks(1, [&](int) {
    if (test::ranks_are_processes()) return;  // each would write the same files
    State state;
    for (const auto& [name, value] : values()) state[name] = value;
    save_safetensors(state, dir / "m", {.max_file_bytes = 100});
    const auto attempt = [&](const std::string& index) {
      std::ofstream(dir / "m/model.safetensors.index.json") << index;
      return [&] { load(state, dir / "m"); };
    };
    expect_error<InvalidArgument>(attempt("{}"), {"weight_map"});
    expect_error<InvalidArgument>(attempt(R"({"weight_map": {"x": "../secret"}})"),
                                  {"../secret", "not inside"});
    expect_error<InvalidArgument>(
        attempt(R"({"weight_map": {"x": "model-00001-of-00002.safetensors"}})"),
        {"says that x is in"});
    expect_error<InvalidArgument>(
        attempt(R"({"weight_map": {"b.weight": "model-00002-of-00002.safetensors"}})"),
        {"does not name c"});
  });
}

}  // namespace
}  // namespace tessera
