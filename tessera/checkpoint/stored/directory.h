#pragma once

#include <filesystem>
#include <string>

#include "tessera/checkpoint/stored/directory_lock.h"

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

/// Identifies the checkpoint that is at a path now: the next one put there has another stamp. "" if
/// there is none.
std::string stamp_of(const std::filesystem::path& directory);

/// A new checkpoint that is being written: owns saving_path. Holds a lock that makes a second save
/// to the same directory an error, by this process or another one of this machine; it is released
/// at the latest when the process ends.
class SavingDirectory {
 public:
  /// Creates an empty saving_path, after removing what interrupted saves left there. Throws
  /// InvalidArgument if another save holds it, or if `directory` has files that are no part of a
  /// checkpoint, since they would be lost.
  explicit SavingDirectory(const std::filesystem::path& directory)
      : SavingDirectory(directory, {}) {}
  struct Options {
    /// Has files that this checkpoint overwrites and takes those that it replaces; see
    /// spare_files.h. Empty: there are none, and none are kept.
    std::filesystem::path spare = {};
    int ranks = 1;  ///< that write files
  };
  SavingDirectory(const std::filesystem::path& directory, Options options);
  /// Removes what was not committed.
  ~SavingDirectory();
  SavingDirectory(const SavingDirectory&) = delete;
  SavingDirectory& operator=(const SavingDirectory&) = delete;

  const std::filesystem::path& path() const { return saving_; }

  /// Puts what path() holds in the place of `directory`, durably, and removes the one before, or
  /// keeps its files as spare ones.
  void commit();
  /// The same for a checkpoint that is one file, which path() holds under its name.
  void commit_file();

 private:
  void discard(const std::filesystem::path& replaced) const;

  std::filesystem::path target_;
  std::filesystem::path saving_;
  std::filesystem::path spare_;  // empty: nothing is kept
  DirectoryLock lock_;
};

/// Removes what an interrupted save left at `saving`; a save that still runs keeps its own.
void remove_leftover(const std::filesystem::path& saving);

/// fsync of a directory: names in it are on the device then.
void sync_directory(const std::filesystem::path& directory);

}  // namespace tessera::checkpoint
