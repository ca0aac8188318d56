#pragma once

#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "tessera/partition/assignment.h"
#include "tessera/partition/manifest.h"
#include "tessera/partition/rewrite.h"
#include "tessera/program/archive.h"

namespace tessera::partition {

struct WriteProgress {
  uint64_t bytes = 0;  ///< of tensors, written so far
  uint64_t total = 0;
};

struct WriteOptions {
  RewriteOptions rewrite = {};
  /// Replaces a directory that holds a sharded program; any other one is never touched.
  bool overwrite = false;
  /// Called from the threads that write, one at a time.
  std::function<void(const WriteProgress&)> progress = nullptr;
};

/// The manifest of a program sharded as assigned.
Manifest manifest_of(const program::ExportedProgram& program, const Assignment& assignment,
                     const std::string& source);

/// Writes DIR: manifest.json and rank_<r>.pt2 for every rank of the mesh, files that
/// torch.export.load reads. All programs are made before anything is written; then everything is
/// written to a directory beside, which gets the name DIR when it is complete. After an error there
/// is no DIR, or the one that was there before.
///
/// Throws InvalidArgument if DIR exists, or the mesh is not of the ranks 0..n-1.
void write_sharded(const program::Archive& archive, const program::ExportedProgram& program,
                   const Assignment& assignment, const std::filesystem::path& directory,
                   const WriteOptions& options = {});

}  // namespace tessera::partition
