#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>
#include <sys/mount.h>

#include <cstdlib>
#include <fstream>
#include <thread>

#include "tessera/base/errors.h"
#include "tessera/checkpoint/async_save.h"
#include "tessera/checkpoint/load.h"
#include "tessera/checkpoint/save.h"
#include "tessera/checkpoint/save_safetensors.h"
#include "tessera/checkpoint/steps.h"
#include "tessera/comm/threads.h"
#include "tessera/dtensor/dtensor.h"
#include "tests/checkpoint/one_value.h"
#include "tests/support_pure/expect_error.h"
#include "tests/support_pure/small_disk.h"
#include "tests/support_pure/temp_dir.h"

/// Saves that fail or meet damage: what was there before is never harmed.
namespace tessera {
namespace crash_test {

namespace fs = std::filesystem;
using comm::init_device_mesh;
using comm::run_ranks;
using test::expect_error;
using test::names_in;
using test::SmallDisk;
using test::state_of;
using test::TempDir;
using test::value_in;

/// As a crash between the two renames of a file system without exchange leaves it.
TEST(InterruptedSave, BetweenTwoRenamesIsUndone) {
  const TempDir dir;
  run_ranks(2, [&](int) { save(state_of(1), dir / "ckpt"); });
  fs::rename(dir / "ckpt", dir / ".ckpt.tessera-replaced");
  EXPECT_EQ(value_in(dir / "ckpt"), 1);
  run_ranks(2, [&](int) { save(state_of(2), dir / "ckpt"); });
  EXPECT_EQ(value_in(dir / "ckpt"), 2);
  EXPECT_EQ(names_in(dir.path()), std::vector<std::string>{"ckpt"});
}

TEST(FailedSave, IsAnErrorOnEveryRankAndHarmsNothing) {
  const TempDir dir;
  run_ranks(2, [&](int) { save(state_of(1), dir / "ckpt"); });
  const SmallDisk disk(1 << 20);
  run_ranks(2, [&](int rank) {
    State large = state_of(2);
    if (rank == 1) large["only here"] = at::zeros({1 << 20});
    const auto attempt = [&] { save(large, dir / "ckpt"); };
    rank == 0 ? expect_error<PeerError>(attempt, {"rank 1: cannot write", "__1_0.distcp"})
              : expect_error<Error>(attempt, {"cannot write", "__1_0.distcp"});
    AsyncSaver saver;
    saver.save(large, dir / "ckpt");
    EXPECT_THROW(saver.wait(), Error);
  });
  EXPECT_EQ(value_in(dir / "ckpt"), 1);
  EXPECT_EQ(names_in(dir.path()), std::vector<std::string>{"ckpt"});
}

TEST(FailedSave, OfAnExceptionThatIsNotAStdExceptionIsAnErrorOnEveryRank) {
  const TempDir dir;
  for (const SaveStage failing : {SaveStage::prepared, SaveStage::written}) {
    run_ranks(2,
              [&](int rank) {
                SaveOptions options;
                options.on_stage = [&](SaveStage stage) {
                  if (rank == 1 && stage == failing) throw 42;
                };
                const auto check = [&](const auto& attempt) {
                  if (rank == 0)
                    return expect_error<PeerError>(attempt, {"rank 1", "std::exception"});
                  EXPECT_THROW(attempt(), int);
                };
                check([&] { save(state_of(1), dir / "a", options); });
                check([&] {
                  AsyncSaver saver;
                  saver.save(state_of(1), dir / "a", options);
                  saver.wait();
                });
              },
              {.timeout = std::chrono::seconds(5)});
  }
  EXPECT_EQ(names_in(dir.path()), std::vector<std::string>{});
}

/// A file system of so many bytes; of no size where this user may not mount one.
class SmallFileSystem {
 public:
  explicit SmallFileSystem(const fs::path& path, int64_t bytes) : path_(path.string()) {
    fs::create_directories(path);
    const std::string options = join_text("size=", bytes);
    mounted_ = ::mount("tmpfs", path_.c_str(), "tmpfs", 0, options.c_str()) == 0;
  }
  ~SmallFileSystem() {
    if (mounted_) ::umount2(path_.c_str(), MNT_DETACH);
  }
  SmallFileSystem(const SmallFileSystem&) = delete;
  SmallFileSystem& operator=(const SmallFileSystem&) = delete;
  bool mounted() const { return mounted_; }

 private:
  std::string path_;
  bool mounted_ = false;
};

TEST(FullDisk, IsAnErrorOnEveryRankInEveryFormat) {
  const TempDir dir;
  const SmallFileSystem small(dir / "small", 4 << 20);
  if (!small.mounted()) GTEST_SKIP() << "mounting a small file system is not allowed here";
  const fs::path root = dir / "small";
  run_ranks(3, [&](int) {
    save(state_of(1), root / "ckpt");
    State large = state_of(2);
    large["large"] =
        distribute_tensor(at::zeros({3 << 10, 1 << 10}), init_device_mesh("dp=3"), {Shard(0)});
    const std::initializer_list<std::string_view> full = {"No space left on device"};
    expect_error<Error>([&] { save(large, root / "ckpt"); }, full);
    EXPECT_EQ(value_in(root / "ckpt"), 1);
    AsyncSaver saver;
    saver.save(large, root / "ckpt");
    expect_error<Error>([&] { saver.wait(); }, full);
    EXPECT_EQ(value_in(root / "ckpt"), 1);
    large.erase("value");
    expect_error<Error>([&] { save_safetensors(large, root / "model.safetensors"); }, full);
    save(state_of(3), root / "ckpt");  // what failed took no room for good
  });
  EXPECT_EQ(value_in(root / "ckpt"), 3);
  EXPECT_EQ(names_in(root), std::vector<std::string>{"ckpt"});
}

TEST(Save, RefusesADirectoryWithOtherFiles) {
  const TempDir dir;
  fs::create_directories(dir / "home");
  std::ofstream(dir / "home/thesis.txt") << "years of work";
  run_ranks(2, [&](int rank) {
    const auto attempt = [&] { save(state_of(1), dir / "home"); };
    rank == 0 ? expect_error<InvalidArgument>(attempt, {"thesis.txt"})
              : expect_error<PeerError>(attempt, {"rank 0", "thesis.txt"});
  });
  EXPECT_TRUE(fs::exists(dir / "home/thesis.txt"));
}

TEST(Steps, KeepTheLastAndCleanUp) {
  const TempDir dir;
  EXPECT_FALSE(latest_step(dir / "run").has_value());
  fs::create_directories(dir / "run/.step_7.tessera-saving");
  fs::create_directories(dir / "run/.step_3.tessera-removing");
  run_ranks(2, [&](int) {
    for (const int step : {1, 2, 10, 20}) {
      save_step(state_of(step), dir / "run", step, {.keep = 2});
    }
  });
  EXPECT_EQ(saved_steps(dir / "run"), (std::vector<int64_t>{10, 20}));
  EXPECT_EQ(names_in(dir / "run"), (std::vector<std::string>{"step_10", "step_20"}));
  EXPECT_EQ(value_in(step_path(dir / "run", *latest_step(dir / "run"))), 20);
}

TEST(AsyncSave, WritesWhatTheStateWasWhenItWasCalled) {
  const TempDir dir;
  run_ranks(2, [&](int) {
    AsyncSaver saver;
    State state = state_of(1);
    saver.save(state, dir / "a");
    std::get<at::Tensor>(state.at("w")).fill_(9);
    std::get<at::Tensor>(state.at("plain")).fill_(9);
    saver.save(state_of(2), dir / "a");  // waits for the one before
    saver.wait();
    saver.wait();
    EXPECT_FALSE(saver.busy());
  });
  EXPECT_EQ(value_in(dir / "a"), 2);
  EXPECT_EQ(names_in(dir.path()), std::vector<std::string>{"a"});
}

TEST(AsyncSave, ThrowsAtTheNextCallOnEveryRank) {
  const TempDir dir;
  run_ranks(2, [&](int rank) {
    AsyncSaver saver;
    saver.save(state_of(1), dir / "a");
    saver.wait();
    SaveOptions options;
    options.on_stage = [&](SaveStage stage) {
      if (stage == SaveStage::written && rank == 1) throw Error("the disk is on fire");
    };
    saver.save(state_of(2), dir / "a", options);
    const auto next = [&] { saver.save(state_of(3), dir / "a"); };
    rank == 1 ? expect_error<Error>(next, {"on fire"}) : expect_error<PeerError>(next, {"on fire"});
    EXPECT_EQ(value_in(dir / "a"), 1);
    saver.save(state_of(3), dir / "a");
    saver.wait();
  });
  EXPECT_EQ(value_in(dir / "a"), 3);
}

TEST(AsyncSave, RefusesASecondOneIfAsked) {
  const TempDir dir;
  run_ranks(2, [&](int) {
    AsyncSaver saver({.refuse_when_busy = true});
    std::atomic<bool> go = false;
    SaveOptions options;
    options.on_stage = [&](SaveStage stage) {
      while (stage == SaveStage::written && !go) std::this_thread::yield();
    };
    saver.save(state_of(1), dir / "a", options);
    expect_error<InvalidArgument>([&] { saver.save(state_of(2), dir / "a"); }, {"has not ended"});
    go = true;
    saver.wait();
  });
  EXPECT_EQ(value_in(dir / "a"), 1);
}

void flip_byte(const fs::path& path, int64_t at) {
  std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
  file.seekg(at);
  const char byte = static_cast<char>(file.get());
  file.seekp(at);
  file.put(static_cast<char>(byte ^ 0x10));
}

TEST(DamagedCheckpoint, IsNamedWithItsFileAndTensor) {
  const TempDir dir;
  run_ranks(2, [&](int) { save(state_of(1), dir / "bad"); });
  flip_byte(dir / "bad/__1_0.distcp", 100);
  run_ranks(2, [&](int rank) {
    const DeviceMesh mesh = init_device_mesh("dp=2");
    State state = {{"w", distribute_tensor(at::zeros({6, 3}), mesh, {Shard(0)})}};
    const auto attempt = [&] { load(state, dir / "bad", {.allow_unexpected = true}); };
    rank == 1 ? expect_error<InvalidArgument>(attempt, {"rank 1: w: ", "__1_0.distcp is damaged"})
              : expect_error<PeerError>(attempt, {"rank 1: w: ", "__1_0.distcp is damaged"});
  });
}

/// Any one flipped byte of any file is found, and no tensor has changed.
TEST(DamagedCheckpoint, IsFoundBeforeAnythingChanges) {
  const TempDir dir;
  run_ranks(2, [&](int) { save(state_of(1), dir / "good"); });
  for (const std::string name : {"__0_0.distcp", "__1_0.distcp", ".metadata", "checksums.json"}) {
    const auto size = static_cast<int64_t>(fs::file_size(dir / "good" / name));
    for (int64_t at = 0; at < size; at += 37) {
      const fs::path path = dir / "bad";
      fs::remove_all(path);
      fs::copy(dir / "good", path, fs::copy_options::recursive);
      flip_byte(path / name, at);
      State state = {{"w", at::zeros({6, 3})}, {"plain", at::zeros({5})}, {"value", PlainValue()}};
      EXPECT_THROW(load(state, path), Error) << name << " at " << at;
      EXPECT_EQ(std::get<at::Tensor>(state.at("w")).abs().sum().item<double>(), 0);
      EXPECT_EQ(std::get<at::Tensor>(state.at("plain")).abs().sum().item<double>(), 0);
    }
  }
  for (const std::string name : {"__0_0.distcp", "__1_0.distcp", ".metadata", "checksums.json"}) {
    const fs::path path = dir / "bad";
    fs::remove_all(path);
    fs::copy(dir / "good", path, fs::copy_options::recursive);
    fs::resize_file(path / name, fs::file_size(path / name) / 2);
    EXPECT_THROW(value_in(path), Error) << name;
    fs::remove(path / name);
    if (name != "checksums.json") {
      EXPECT_THROW(value_in(path), Error) << name;
    }
  }
}

}  // namespace crash_test
}  // namespace tessera
