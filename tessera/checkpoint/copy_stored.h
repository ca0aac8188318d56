#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>

#include "tessera/checkpoint/stored/stored_state.h"

/// Converts a stored state to another format or number of ranks, without the program that saved it.
///
/// Memory: at most 16 MiB of elements at a time, however large the tensors are and however their
/// chunks are arranged; safetensors files are mapped while they are written. As with save(), what
/// was at the target stays until the new state is complete and synced.
namespace tessera::checkpoint {

struct CopyOptions {
  /// Leaves out values that are no tensors, which safetensors cannot hold.
  bool tensors_only = false;
  /// Bytes of tensors that have been written, of all.
  std::function<void(uint64_t bytes, uint64_t total)> on_progress = {};
};

/// As PyTorch's distributed checkpoint, in one file, with the chunks that are stored.
void copy_as_checkpoint(StoredState& stored, const std::filesystem::path& directory,
                        const CopyOptions& options);
/// The same with a file for each of `ranks` ranks, of which each has its part of the rows.
void copy_resharded(StoredState& stored, const std::filesystem::path& directory, int ranks,
                    const CopyOptions& options);
/// As safetensors: one file, or a directory; see save_safetensors.
void copy_as_safetensors(StoredState& stored, const std::filesystem::path& path,
                         const CopyOptions& options);

}  // namespace tessera::checkpoint
