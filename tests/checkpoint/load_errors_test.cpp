#include <ATen/ops/arange.h>
#include <ATen/ops/zeros.h>
#include <c10/core/InferenceMode.h>
#include <gtest/gtest.h>

#include <fstream>

#include "tessera/base/errors.h"
#include "tessera/checkpoint/load.h"
#include "tessera/checkpoint/save.h"
#include "tessera/checkpoint/save_safetensors.h"
#include "tessera/comm/threads.h"
#include "tessera/dtensor/dtensor.h"
#include "tests/support_pure/expect_error.h"
#include "tests/support_pure/temp_dir.h"

/// States and directories that a load refuses: nothing in memory has changed then.
namespace tessera {
namespace load_errors_test {

namespace fs = std::filesystem;
using comm::init_device_mesh;
using comm::run_ranks;
using test::expect_error;
using test::TempDir;

/// "a" and "c" can be written to; "b" is given.
void expect_refused(const fs::path& checkpoint, const at::Tensor& b, std::string_view text) {
  const at::Tensor a = at::zeros({4}), c = at::zeros({4});
  State state = {{"a", a}, {"b", b}, {"c", c}};
  expect_error<InvalidArgument>([&] { load(state, checkpoint); },
                                {"does not fit the state: b ", text});
  EXPECT_EQ(a.abs().sum().item<float>() + c.abs().sum().item<float>(), 0);
}

TEST(Load, IntoWhatCannotBeWrittenChangesNothing) {
  const TempDir dir;
  const at::Tensor values = at::arange(4.0) + 1;
  save({{"a", values}, {"b", values}, {"c", values}}, dir / "ckpt");
  expect_refused(dir / "ckpt", at::zeros({1}).expand({4}), "has elements that share memory");
  expect_refused(dir / "ckpt", at::zeros({4}).to_sparse(), "is not a dense tensor");
  expect_refused(dir / "ckpt", {}, "is an undefined tensor");
  at::Tensor inferred;
  {
    const c10::InferenceMode inference;
    inferred = at::zeros({4});
  }
  expect_refused(dir / "ckpt", inferred, "is an inference tensor");
  const c10::InferenceMode inference;
  State state = {{"b", inferred}};
  load(state, dir / "ckpt", {.allow_unexpected = true});
  EXPECT_TRUE(at::equal(inferred, values));
}

TEST(Load, IntoWhatOneRankCannotWriteChangesNoRank) {
  const TempDir dir;
  run_ranks(2, [&](int rank) {
    const DeviceMesh mesh = init_device_mesh("dp=2");
    const at::Tensor values = at::arange(8.0) + 1;
    save({{"a", values}, {"b", values}}, dir / "ckpt");
    const at::Tensor a = distribute_tensor(at::zeros({8}), mesh, {Shard(0)});
    State state = {{"a", a}, {"b", rank == 1 ? at::zeros({1}).expand({8}) : at::zeros({8})}};
    const auto attempt = [&] { load(state, dir / "ckpt"); };
    rank == 1 ? expect_error<InvalidArgument>(attempt, {"rank 1: ", "b has elements that share"})
              : expect_error<PeerError>(attempt, {"rank 1: ", "b has elements that share"});
    EXPECT_EQ(to_local(a).abs().sum().item<float>(), 0);
  });
}

TEST(Save, WhereNoDirectoryCanBeIsAnErrorOfTheLibrary) {
  const TempDir dir;
  std::ofstream(dir / "file") << "x";
  for (const int ranks : {1, 2}) {
    run_ranks(ranks, [&](int rank) {
      const auto attempt = [&] { save({{"a", at::zeros({4})}}, dir / "file/ckpt"); };
      rank == 0 ? expect_error<Error>(attempt, {"file", "Not a directory"})
                : expect_error<PeerError>(attempt, {"rank 0: ", "Not a directory"});
    });
  }
}

TEST(Load, FollowsNoLinkOutOfTheDirectory) {
  for (const std::string name : {"__0_0.distcp", ".metadata", "checksums.json"}) {
    const TempDir dir;
    save({{"a", at::arange(4.0)}}, dir / "ckpt");
    fs::rename(dir / "ckpt" / name, dir / "outside");
    fs::create_symlink(dir / "outside", dir / "ckpt" / name);
    const at::Tensor a = at::zeros({4});
    State state = {{"a", a}};
    expect_error<InvalidArgument>([&] { load(state, dir / "ckpt"); },
                                  {name, "symbolic link that leads out of the directory"});
    EXPECT_EQ(a.abs().sum().item<float>(), 0);
  }
}

/// As by another program, after the first bytes of the load; a mapping would end the process.
TEST(Load, OfAFileThatIsTruncatedMeanwhileIsAnError) {
  for (const bool verify : {true, false}) {
    for (const bool as_safetensors : {false, true}) {
      const TempDir dir;
      const at::Tensor values = at::zeros({1 << 20});
      const std::string path = dir / (as_safetensors ? "m.safetensors" : "ckpt");
      const State saved = {{"a", values}, {"b", values}, {"c", values}};
      as_safetensors ? save_safetensors(saved, path) : save(saved, path);
      const std::string file = as_safetensors ? path : path + "/__0_0.distcp";
      State state = {{"a", at::ones({1 << 20})},
                     {"b", at::ones({1024, 1024}).t().reshape(-1)},
                     {"c", at::ones({1 << 20}, at::kDouble)}};
      const auto truncate = [&](uint64_t, uint64_t) { fs::resize_file(file, 5000); };
      expect_error<Error>(
          [&] { load(state, path, {.cast = true, .verify = verify, .on_progress = truncate}); },
          // A single file counts as replaced then, and is opened again.
          {file, as_safetensors ? "outside of the file" : "has been truncated since"});
    }
  }
}

TEST(Load, OfAnImplausiblyLongDescriptionIsAnError) {
  const TempDir dir;
  save({{"a", at::zeros({4})}}, dir / "ckpt");
  State state = {{"a", at::zeros({4})}};
  fs::resize_file(dir / "ckpt/.metadata", uint64_t{5} << 30);  // sparse
  expect_error<InvalidArgument>([&] { load(state, dir / "ckpt"); }, {".metadata", "5368709120"});
  fs::remove(dir / "ckpt/checksums.json");
  expect_error<InvalidArgument>([&] { load(state, dir / "ckpt"); },
                                {".metadata has 5368709120 bytes", "plausible"});
}

}  // namespace load_errors_test
}  // namespace tessera
