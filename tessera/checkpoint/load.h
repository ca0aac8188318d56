#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "tessera/base/api.h"
#include "tessera/checkpoint/state.h"
#include "tessera/comm/world.h"

namespace tessera {

struct TESSERA_API LoadOptions {
  /// Who takes part; by default the current world.
  std::shared_ptr<comm::RankWorld> world = nullptr;
  /// Names of the state that the checkpoint lacks keep their values.
  bool allow_missing = false;
  /// Names of the checkpoint that the state lacks are left out.
  bool allow_unexpected = false;
  /// Pairs of a pattern and its replacement, applied to the names of the checkpoint; of several
  /// patterns that match a name the first counts. A pattern is a regular expression (ECMAScript;
  /// "$1" in the replacement is its first group): {{"^module\\.", "model."}}.
  /// Or, after "glob:", a pattern of whole names: * matches one part between dots, ** any number of
  /// them; the stars of the replacement stand, in order, for what was matched:
  /// {{"glob:module.*.weight", "layers.*.w"}}.
  std::vector<std::pair<std::string, std::string>> renames = {};
  /// Elements are converted to the type of the state's tensor, which otherwise must be the same.
  bool cast = false;
  /// Every byte that is used is checked against its checksum first.
  bool verify = true;
  /// Called while this rank reads, for progress on a terminal. Every byte counts twice, when it is
  /// checked and when it is copied: `total` is twice the bytes that the rank loads.
  std::function<void(uint64_t bytes, uint64_t total)> on_progress = {};
};

/// What a checkpoint and a state do not have in common.
struct TESSERA_API LoadReport {
  std::vector<std::string> missing;     ///< names of the state that the checkpoint lacks
  std::vector<std::string> unexpected;  ///< names of the checkpoint that the state lacks
  std::vector<std::string> mismatched;  ///< "w is 8x4 in the checkpoint and 8x6 in the state"

  bool empty() const { return missing.empty() && unexpected.empty() && mismatched.empty(); }
  std::string to_text() const;
};

/// Reads a checkpoint that save() or torch.distributed.checkpoint has written into the tensors of
/// the state, sharded as they are: on another mesh, in other placements, on more or fewer ranks
/// than it was saved on. Plain values of the state are replaced. Every rank of the world calls it.
///
/// Each rank reads the blocks that overlap with its own parts, each once; no tensor is sent. What
/// does not fit (names, shapes, types; files that are missing, truncated or damaged; chunks that
/// overlap or leave holes; paths out of the directory) is an error on every rank, before any rank
/// has changed anything. Pickles are read as data, never executed.
///
/// All ranks read the same save: where another one replaces it meanwhile, they begin again.
///
/// Checksums are compared before anything is overwritten: in checkpoints of save() those of all
/// bytes, in PyTorch's those of the items that the rank uses.
///
/// Memory: beyond the state a buffer of 1 MiB, or 16 MiB for tensors on another device. Files are
/// read, not mapped: one that another program truncates meanwhile is an error.
TESSERA_API LoadReport load(State& state, const std::filesystem::path& directory,
                            const LoadOptions& options = {});

}  // namespace tessera
