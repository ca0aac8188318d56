#include <gtest/gtest.h>
#include <sys/stat.h>

#include <array>
#include <atomic>
#include <fstream>
#include <functional>
#include <thread>
#include <utility>

#include "tessera/base/errors.h"
#include "tessera/checkpoint/async_save.h"
#include "tessera/checkpoint/load.h"
#include "tessera/checkpoint/save.h"
#include "tessera/checkpoint/save_safetensors.h"
#include "tessera/checkpoint/steps.h"
#include "tessera/comm/threads.h"
#include "tests/checkpoint/one_value.h"
#include "tests/support_pure/expect_error.h"
#include "tests/support_pure/temp_dir.h"

/// A directory that several saves and loads use at the same time.
namespace tessera {
namespace two_savers_test {

namespace fs = std::filesystem;
using comm::run_ranks;
using test::expect_error;
using test::names_in;
using test::state_of;
using test::TempDir;
using test::value_in;

/// Calls `meanwhile` when a save of `value` has reached `stage` on both of its ranks.
void save_and(double value, const fs::path& path, SaveStage stage,
              const std::function<void()>& meanwhile) {
  run_ranks(2, [&](int rank) {
    SaveOptions options;
    options.on_stage = [&](SaveStage reached) {
      if (reached == stage && rank == 0) meanwhile();
    };
    save(state_of(value), path, options);
  });
}

TEST(TwoSavers, OfOneDirectoryAreNotMixed) {
  const TempDir dir;
  const fs::path path = dir / "ckpt";
  run_ranks(2, [&](int) { save(state_of(1), path); });
  for (const auto stage : {SaveStage::prepared, SaveStage::described}) {
    save_and(2, path, stage, [&] {
      std::thread([&] {
        run_ranks(1, [&](int) {
          expect_error<InvalidArgument>([&] { save(state_of(3), path); }, {"another save", "ckpt"});
          AsyncSaver saver;
          expect_error<InvalidArgument>([&] { saver.save(state_of(3), path); }, {"another save"});
          State tensors = {{"w", at::zeros({2})}};
          expect_error<InvalidArgument>([&] { save_safetensors(tensors, path); }, {"another save"});
        });
      }).join();
    });
    EXPECT_EQ(value_in(path), 2);
  }
  run_ranks(1, [&](int) { save(state_of(4), path); });  // the lock is free again
  EXPECT_EQ(value_in(path), 4);
  EXPECT_EQ(names_in(dir.path()), std::vector<std::string>{"ckpt"});
}

TEST(TwoSavers, OfOneRunKeepTheirSteps) {
  const TempDir dir;
  run_ranks(1, [&](int) {
    AsyncSaver saver;
    std::atomic<bool> go = false;
    SaveOptions options;
    options.on_stage = [&](SaveStage stage) {
      while (stage == SaveStage::written && !go) std::this_thread::yield();
    };
    saver.save(state_of(1), step_path(dir / "run", 1), options);
    save_step(state_of(2), dir / "run", 2, {});  // cleans up, but not what is being written
    go = true;
    saver.wait();
  });
  EXPECT_EQ(value_in(step_path(dir / "run", 1)), 1);
  EXPECT_EQ(names_in(dir / "run"), (std::vector<std::string>{"step_1", "step_2"}));
}

/// The checkpoint is replaced when the load has opened some of its files.
TEST(LoadDuringSaves, BeginsAgainWithTheNewOne) {
  const TempDir dir;
  const fs::path path = dir / "ckpt";
  for (const bool verify : {true, false}) {
    run_ranks(2, [&](int) { save(state_of(1), path); });
    State state = {{"w", at::zeros({6, 3})}, {"plain", at::zeros({5})}, {"value", PlainValue()}};
    bool replaced = false;
    LoadOptions options{.verify = verify};
    options.on_progress = [&](uint64_t, uint64_t) {
      if (std::exchange(replaced, true)) return;
      std::thread([&] { run_ranks(2, [&](int) { save(state_of(2), path); }); }).join();
    };
    load(state, path, options);
    EXPECT_TRUE(replaced);
    EXPECT_EQ(std::get<PlainValue>(state.at("value")).real(), 2);
    EXPECT_TRUE(at::equal(std::get<at::Tensor>(state.at("w")), at::full({6, 3}, 2.0)));
    EXPECT_TRUE(at::equal(std::get<at::Tensor>(state.at("plain")), at::full({5}, 2.0)));
  }
}

/// Loads while others save: each gives one save, whole, on all of its ranks.
TEST(LoadDuringSaves, IsOfOneSave) {
  const TempDir dir;
  const fs::path path = dir / "ckpt";
  run_ranks(2, [&](int) { save(state_of(0), path); });
  std::atomic<bool> stop = false;
  std::thread saving([&] {
    for (int i = 1; !stop; ++i) {
      run_ranks(2, [&](int) { save(state_of(i), path); });
    }
  });
  for (const bool verify : {true, false}) {
    for (int i = 0; i < 60; ++i) {
      std::array<double, 3> values{};
      run_ranks(3, [&](int rank) {
        State state = {
            {"w", at::zeros({6, 3})}, {"plain", at::zeros({5})}, {"value", PlainValue()}};
        try {
          load(state, path, {.verify = verify});
        } catch (const Error& error) {
          EXPECT_NE(std::string(error.what()).find("was replaced"), std::string::npos)
              << error.what();
          return;
        }
        const double value = std::get<PlainValue>(state.at("value")).real();
        EXPECT_TRUE(at::equal(std::get<at::Tensor>(state.at("w")), at::full({6, 3}, value)));
        EXPECT_TRUE(at::equal(std::get<at::Tensor>(state.at("plain")), at::full({5}, value)));
        values[static_cast<size_t>(rank)] = value;
      });
      EXPECT_EQ(values[0], values[1]);
      EXPECT_EQ(values[0], values[2]);
    }
  }
  stop = true;
  saving.join();
}

TEST(Save, ThroughALinkReplacesWhereItLeads) {
  const TempDir dir;
  fs::create_directories(dir / "disk");
  run_ranks(2, [&](int) { save(state_of(1), dir / "disk/ckpt"); });
  fs::create_directory_symlink(dir / "disk/ckpt", dir / "latest");
  run_ranks(2, [&](int) { save(state_of(2), dir / "latest"); });
  EXPECT_TRUE(fs::is_symlink(dir / "latest"));
  EXPECT_EQ(value_in(dir / "latest"), 2);
  EXPECT_EQ(value_in(dir / "disk/ckpt"), 2);
  EXPECT_EQ(names_in(dir / "disk"), std::vector<std::string>{"ckpt"});
}

TEST(Save, ThroughALinkThatLeadsNowhereIsRefused) {
  const TempDir dir;
  fs::create_directory_symlink(dir / "gone", dir / "latest");
  fs::create_directory_symlink(dir / "loop", dir / "loop");
  for (const std::string name : {"latest", "loop"}) {
    expect_error<InvalidArgument>([&] { save(state_of(1), dir / name); },
                                  {name + " is a symbolic link that leads nowhere"});
  }
  EXPECT_EQ(names_in(dir.path()), (std::vector<std::string>{"latest", "loop"}));
}

TEST(Load, OfANamedPipeIsAnErrorAndNoWait) {
  const TempDir dir;
  for (const std::string name : {".metadata", "checksums.json", "__0_0.distcp"}) {
    const fs::path path = dir / "ckpt";
    run_ranks(1, [&](int) { save(state_of(1), path); });
    fs::remove(path / name);
    ASSERT_EQ(::mkfifo((path / name).c_str(), 0600), 0);
    expect_error<InvalidArgument>([&] { value_in(path); }, {name, "not a regular file"});
    fs::remove(path / name);
  }
}

TEST(Save, ClearsAFileInTheWay) {
  const TempDir dir;
  std::ofstream(dir / ".ckpt.tessera-saving") << "left";
  run_ranks(2, [&](int) { save(state_of(1), dir / "ckpt"); });
  EXPECT_EQ(value_in(dir / "ckpt"), 1);
  EXPECT_EQ(names_in(dir.path()), std::vector<std::string>{"ckpt"});
}

}  // namespace two_savers_test
}  // namespace tessera
