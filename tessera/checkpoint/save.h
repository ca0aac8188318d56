#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <string>

#include "tessera/base/api.h"
#include "tessera/checkpoint/state.h"
#include "tessera/comm/world.h"
#include "tessera/dcp/metadata.h"

namespace tessera {

/// How far a save has come, on this rank.
enum class SaveStage {
  planned,    ///< every rank knows what it writes; nothing is on disk
  prepared,   ///< the directory of the new checkpoint exists
  written,    ///< this rank's tensors are on disk
  described,  ///< rank 0: metadata and checksums are on disk
  committed,  ///< the new checkpoint is in place, on all ranks
};

struct TESSERA_API SaveOptions {
  /// Who takes part; by default the current world.
  std::shared_ptr<comm::RankWorld> world = nullptr;
  /// How names nest, for programs that rebuild a nested state from the checkpoint. A name that is
  /// not listed is one key of a flat state.
  std::map<std::string, dcp::Path> paths = {};
  /// A directory of spare files, on the same file system: the files of the checkpoint that this
  /// one replaces (or of the step that save_step removes) are kept there, and the next save with
  /// the same directory overwrites them. Disks that find space for new blocks slowly, as virtual
  /// ones do, take those about twice as fast; the price is the space of one more checkpoint. Only
  /// files that no other program has open or linked are overwritten, and only on ext4 and XFS;
  /// elsewhere nothing is gained. Empty: none.
  std::filesystem::path spare = {};
  /// Called when a stage is reached; an exception from it fails the save on every rank, except at
  /// `committed`, when the checkpoint is in place and the exception is this rank's alone.
  std::function<void(SaveStage)> on_stage = {};
  /// Called while this rank writes its file, about once a mebibyte: bytes written, of all that it
  /// writes. For progress on a terminal.
  std::function<void(uint64_t bytes, uint64_t total)> on_progress = {};
};

/// Writes the state to `directory` as PyTorch's torch.distributed.checkpoint does, which loads it;
/// the checksums that are stored beside are for load(). Every rank of the world calls it; all see
/// one file system. Each rank writes its own parts, replicated data is written once.
///
/// The new checkpoint is written beside the directory, synced to the device and then put in its
/// place at once: a save that is interrupted at any point, or fails on any rank (a full disk, say),
/// leaves what was there. Errors are thrown on every rank: on the rank where it happened as it is,
/// on the others a PeerError with its text. A directory that holds other files is refused, and one
/// that another save is writing.
///
/// Files of more than 4 MiB are written past the page cache where the file system allows it.
///
/// Memory: beyond the state 12 MiB, and 16 MiB more for tensors that are not contiguous or not on
/// the CPU.
TESSERA_API void save(const State& state, const std::filesystem::path& directory,
                      const SaveOptions& options = {});

}  // namespace tessera
