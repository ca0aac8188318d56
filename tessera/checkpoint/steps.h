#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <vector>

#include "tessera/base/api.h"
#include "tessera/checkpoint/save.h"

/// The checkpoints of a run: one directory a step, of which the last few are kept.
///
///   save_step(state, "runs/gpt", 300, {.keep = 2});     // runs/gpt/step_300; removes step_100
///   if (auto step = latest_step("runs/gpt")) load(state, step_path("runs/gpt", *step));
namespace tessera {

struct TESSERA_API SaveStepOptions {
  SaveOptions save = {};
  /// How many are kept, the new one included; 0: all. Older ones are removed once the new one is in
  /// place.
  int keep = 0;
};

TESSERA_API void save_step(const State& state, const std::filesystem::path& root, int64_t step,
                           const SaveStepOptions& options = {});

TESSERA_API std::filesystem::path step_path(const std::filesystem::path& root, int64_t step);

/// The steps that have a checkpoint, ascending. Saves that were interrupted do not count.
TESSERA_API std::vector<int64_t> saved_steps(const std::filesystem::path& root);
/// The highest of them; none if there is none, or no such directory.
TESSERA_API std::optional<int64_t> latest_step(const std::filesystem::path& root);

}  // namespace tessera
