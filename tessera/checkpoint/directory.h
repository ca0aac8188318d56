#pragma once

#include <filesystem>

/// How a checkpoint directory is replaced so that a crash at any point leaves a whole one.
///
///   step_100                       the checkpoint
///   .step_100.tessera-saving       a new one in the making: complete only when it is renamed
///   .step_100.tessera-replaced     the one before, on file systems that cannot exchange two
///                                  directories at once: between two renames it is the only one
namespace tessera::checkpoint {

/// Where a new checkpoint of `directory` is written.
std::filesystem::path saving_path(const std::filesystem::path& directory);

/// The directory to read: `directory`, or the one that an interrupted replacement left beside it.
/// Throws InvalidArgument if there is neither.
std::filesystem::path readable_directory(const std::filesystem::path& directory);

/// Creates an empty saving_path, after what interrupted saves left behind is cleaned up. Throws
/// InvalidArgument if `directory` has files that are no part of a checkpoint, since they would be
/// lost.
void begin_saving(const std::filesystem::path& directory);

/// Puts what saving_path holds in the place of `directory`, durably, and removes the one before.
void commit_saving(const std::filesystem::path& directory);

/// The same for a checkpoint that is one file, which saving_path holds under its name.
void commit_file(const std::filesystem::path& file);

/// Removes saving_path; for a save that failed. Does not throw.
void abandon_saving(const std::filesystem::path& directory) noexcept;

/// Removes a file, or a directory with all that is in it, without following links. Throws Error.
/// (Some builds of libtorch export a std::filesystem::remove_all of their own that crashes here.)
void remove_tree(const std::filesystem::path& path);

/// fsync of a directory: names in it are on the device then.
void sync_directory(const std::filesystem::path& directory);

}  // namespace tessera::checkpoint
