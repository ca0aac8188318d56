#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <thread>

#include "tessera/base/errors.h"
#include "tessera/checkpoint/async_save.h"
#include "tessera/checkpoint/save.h"
#include "tessera/comm/threads.h"
#include "tests/checkpoint/one_value.h"
#include "tests/support/processes.h"
#include "tests/support_pure/temp_dir.h"

/// kill -9 of any rank at any stage of a save leaves a checkpoint that loads.
namespace tessera {
namespace kill_test {

namespace fs = std::filesystem;
using comm::init_device_mesh;
using comm::run_ranks;
using tessera::testing::Scenario;
using test::names_in;
using test::state_of;
using test::TempDir;
using test::value_in;

/// Saves once, and again: then the victim dies when it reaches the stage, or in the middle of its
/// file.
const Scenario kKilled("killed in a save", [] {
  const fs::path path = std::getenv("CHECKPOINT");
  const std::string stage = std::getenv("STAGE");
  const auto world = comm::process_world();
  const bool is_victim = world->rank() == std::atoi(std::getenv("VICTIM"));
  SaveOptions options;
  if (std::string(std::getenv("SPARE")) == "1") {
    options.spare = path.parent_path() / "spare";
    for (int i = 0; i < 2; ++i) save(state_of(0), path, options);  // now there are spare files
  }
  save(state_of(1), path, options);
  State next = state_of(2);
  std::thread watcher;
  options.on_stage = [&](SaveStage reached) {
    if (!is_victim) return;
    if (stage == std::to_string(static_cast<int>(reached))) ::kill(::getpid(), SIGKILL);
    if (stage != "writing" || reached != SaveStage::prepared) return;
    watcher = std::thread([file = path.parent_path() / ".ckpt.tessera-saving" /
                                  join_text("__", world->rank(), "_0.distcp")] {
      std::error_code none_yet;
      for (uintmax_t size = 0; size == 0 || none_yet; size = fs::file_size(file, none_yet)) {
      }
      ::kill(::getpid(), SIGKILL);
    });
  };
  if (stage == "writing") {
    next["large"] =
        distribute_tensor(at::full({64, 1 << 18}, 2.0), init_device_mesh("dp=2"), {Shard(0)});
  }
  AsyncSaver saver;
  try {
    if (std::string(std::getenv("ASYNC")) == "1") {
      saver.save(next, path, options);
      saver.wait();
    } else {
      save(next, path, options);
    }
  } catch (const PeerError&) {
  }
  if (watcher.joinable()) watcher.join();
  if (!is_victim) std::_Exit(0);  // a shutdown in order would wait for the one that died
});

struct Kill {
  int victim;
  std::string stage;  ///< a number of SaveStage, or "writing"
  bool async;
  bool spare;  ///< files are overwritten
  friend void PrintTo(const Kill& kill, std::ostream* out) {
    *out << "rank " << kill.victim << ", stage " << kill.stage << (kill.async ? ", async" : "")
         << (kill.spare ? ", spare" : "");
  }
};

/// Every stage that a rank reaches: rank 0 alone describes, and alone sees the end of a save in the
/// background, whose first two stages are those of any other.
std::vector<Kill> all_kills() {
  std::vector<Kill> out;
  for (const bool async : {false, true}) {
    for (const int victim : {0, 1}) {
      for (const auto stage : {SaveStage::planned, SaveStage::prepared, SaveStage::written,
                               SaveStage::described, SaveStage::committed}) {
        if (async && stage < SaveStage::written) continue;
        if (victim == 1 && stage == SaveStage::described) continue;
        if (victim == 1 && stage == SaveStage::committed && async) continue;
        const bool opened = stage >= SaveStage::prepared && !async;
        out.push_back({victim, std::to_string(static_cast<int>(stage)), async, false});
        if (opened) out.push_back({victim, std::to_string(static_cast<int>(stage)), async, true});
      }
      for (const bool spare : {false, true}) out.push_back({victim, "writing", async, spare});
    }
  }
  return out;
}

class KilledSave : public ::testing::TestWithParam<Kill> {};
INSTANTIATE_TEST_SUITE_P(EveryStage, KilledSave, ::testing::ValuesIn(all_kills()));

TEST_P(KilledSave, LeavesALoadableCheckpoint) {
  const auto& [victim, stage, async, spare] = GetParam();
  const TempDir dir;
  const fs::path path = dir / "ckpt";
  const auto ended =
      testing::run_processes(kKilled, {.size = 2,
                                       .environment = {{"CHECKPOINT", path.string()},
                                                       {"VICTIM", std::to_string(victim)},
                                                       {"STAGE", stage},
                                                       {"ASYNC", async ? "1" : "0"},
                                                       {"SPARE", spare ? "1" : "0"},
                                                       {"TESSERA_TIMEOUT_S", "8"}}});
  const auto is = [&](SaveStage s) { return stage == std::to_string(static_cast<int>(s)); };
  EXPECT_EQ(ended[static_cast<size_t>(victim)].signal, SIGKILL);
  const double found = value_in(path);
  if (async && victim == 1 && is(SaveStage::written)) {
    EXPECT_TRUE(found == 1 || found == 2);  // rank 0 may commit what both have written
  } else {
    EXPECT_EQ(found, is(SaveStage::committed) ? 2 : 1);
  }
  run_ranks(2, [&](int) { save(state_of(3), path); });
  EXPECT_EQ(value_in(path), 3);
  fs::remove_all(dir / "spare");
  EXPECT_EQ(names_in(dir.path()), std::vector<std::string>{"ckpt"});
}

/// The last rank dies before its part is written; the first waits for it.
const Scenario kDeadPeer("dies in a save in the background", [] {
  const auto world = comm::process_world();
  SaveOptions options;
  options.on_stage = [&](SaveStage reached) {
    const bool dies = world->rank() == world->size() - 1 && reached == SaveStage::written;
    if (dies) ::kill(::getpid(), SIGKILL);
  };
  AsyncSaver saver;
  saver.save(state_of(1), std::getenv("CHECKPOINT"), options);
  testing::mark(testing::error_of([&] { saver.wait(); }));
  std::_Exit(0);
});

TEST(KilledAsyncSave, EndsInSecondsWithTheRankThatDied) {
  const TempDir dir;
  const auto start = std::chrono::steady_clock::now();
  const auto ended = testing::run_processes(
      kDeadPeer,
      {.size = 3,
       .deadline = std::chrono::seconds(100),
       .environment = {{"CHECKPOINT", (dir / "ckpt").string()}, {"TESSERA_TIMEOUT_S", "300"}}});
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(60));
  EXPECT_EQ(ended[2].signal, SIGKILL);
  EXPECT_TRUE(ended[0].says("PeerError: rank 2 has not written its part")) << ended[0].to_text();
  EXPECT_TRUE(ended[1].ok() && ended[1].says("PeerError")) << ended[1].to_text();
  EXPECT_EQ(names_in(dir.path()), std::vector<std::string>{});  // nothing is left of it
}

}  // namespace kill_test
}  // namespace tessera
