#include <ATen/ops/arange.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include <chrono>
#include <fstream>

#include "tessera/base/errors.h"
#include "tessera/checkpoint/load.h"
#include "tessera/checkpoint/save.h"
#include "tessera/checkpoint/save_safetensors.h"
#include "tests/support_pure/damaged_program.h"
#include "tests/support_pure/property.h"
#include "tests/support_pure/temp_dir.h"

/// Checkpoints with random damage and no checksums: loading them is an error or gives some values,
/// and never a crash, a hang or memory beyond the files'.
///
///   build/tests/test_checkpoint --file=tests/checkpoint/fuzz_test.cpp      39 s, three formats
///   TESSERA_FUZZ_SECONDS=600 TESSERA_FUZZ_SEED=7 build/tests/...           ten minutes
namespace tessera {
namespace fuzz_test {

namespace fs = std::filesystem;
using test::contents_of;
using test::from_environment;
using test::Rng;
using test::TempDir;

void write_file(const fs::path& path, const std::string& contents) {
  std::ofstream(path, std::ios::binary | std::ios::trunc) << contents;
}

std::string mutated(Rng& rng, std::string contents) {
  const auto place = [&] { return static_cast<size_t>(rng.next() % contents.size()); };
  for (int64_t i = rng.between(1, 4); i > 0 && !contents.empty(); --i) {
    switch (rng.between(0, 5)) {
      case 0:
        contents[place()] = static_cast<char>(rng.next());
        break;
      case 1:
        contents[place()] = static_cast<char>(0xFF);
        break;
      case 2:
        contents[place()] = static_cast<char>(contents[place()] ^ (1 << rng.between(0, 7)));
        break;
      case 3:
        contents.insert(place(), 1 + rng.next() % 8, static_cast<char>(rng.next()));
        break;
      case 4:
        contents.erase(place(), 1 + rng.next() % 8);
        break;
      default:
        if (rng.chance(20)) contents.resize(place());
        break;
    }
  }
  return contents;
}

State sample() {
  return {{"w", at::arange(60.0).reshape({6, 10})},
          {"half", at::arange(7).to(at::kHalf)},
          {"float8", at::arange(8.0).to(at::kFloat8_e5m2)},
          {"scalar", at::arange(1).reshape({})},
          {"step", PlainValue(3)},
          {"betas", PlainValue::tuple({0.9, PlainValue::list({"x", PlainValue::bytes("y")})})}};
}

/// Loads `good` with one of `files` damaged, for a while; returns how many loads failed.
int fuzz(const fs::path& good, const std::vector<std::string>& files, const State& like) {
  const TempDir dir;
  const fs::path bad = dir / good.filename().string();
  fs::copy(good, bad, fs::copy_options::recursive);
  Rng rng(from_environment("TESSERA_FUZZ_SEED", 20'261));
  int failed = 0;
  const auto end = std::chrono::steady_clock::now() +
                   std::chrono::seconds(from_environment("TESSERA_FUZZ_SECONDS", 39) / 3);
  for (size_t round = 0; std::chrono::steady_clock::now() < end; ++round) {
    const std::string& name = files[round % files.size()];
    const std::string contents = contents_of(good / name);
    write_file(bad / name, mutated(rng, contents));
    State state = like;
    for (auto& [key, value] : state) {
      if (auto* tensor = std::get_if<at::Tensor>(&value)) value = at::zeros_like(*tensor);
    }
    try {
      load(state, bad,
           {.allow_missing = true,
            .allow_unexpected = true,
            .cast = true,
            .verify = rng.chance(50)});
    } catch (const Error&) {
      ++failed;
    }
    write_file(bad / name, contents);
  }
  return failed;
}

TEST(Fuzz, OfPyTorchsFormat) {
  const TempDir dir;
  const State state = sample();
  save(state, dir / "ckpt");
  EXPECT_GT(fuzz(dir / "ckpt", {".metadata", "__0_0.distcp", "checksums.json"}, state), 100);
  fs::remove(dir / "ckpt/checksums.json");
  EXPECT_GT(fuzz(dir / "ckpt", {".metadata", "__0_0.distcp"}, state), 100);
}

TEST(Fuzz, OfSafetensors) {
  const TempDir dir;
  State state = sample();
  for (const char* name : {"step", "betas"}) state.erase(name);
  save_safetensors(state, dir / "model", {.max_file_bytes = 100});
  std::vector<std::string> files;
  for (const auto& item : fs::directory_iterator(dir / "model")) {
    files.push_back(item.path().filename().string());
  }
  std::ranges::sort(files);
  EXPECT_GT(fuzz(dir / "model", files, state), 100);
}

}  // namespace fuzz_test
}  // namespace tessera
