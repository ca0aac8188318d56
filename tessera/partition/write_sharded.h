#pragma once

#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "tessera/partition/graph/assignment.h"
#include "tessera/partition/manifest/manifest.h"
#include "tessera/partition/rewrite/rewrite.h"
#include "tessera/program/archive.h"

namespace tessera::partition {

struct WriteProgress {
  uint64_t bytes = 0;  ///< of tensors, written so far
  uint64_t total = 0;
};

struct WriteOptions {
  RewriteOptions rewrite = {};
  /// Replaces a directory or file that holds a sharded program; any other one is never touched.
  bool overwrite = false;
  /// All ranks in one archive.
  bool single_file = false;
  /// Called from the threads that write, one at a time.
  std::function<void(const WriteProgress&)> progress = nullptr;
};

/// The manifest of a program sharded as assigned, written as files of ranks.
Manifest manifest_of(const program::ExportedProgram& program, const Assignment& assignment,
                     const std::string& source);

/// Writes PATH, a directory: manifest.json and rank_<r>.pt2 for every rank of the mesh, files that
/// torch.export.load reads. All programs are made before anything is written; then everything is
/// written to a directory beside, which gets the name PATH when it is complete. After an error
/// there is no PATH, or the one that was there before.
///
/// With `single_file`, PATH is one archive of all ranks, which
/// torch.export.pt2_archive.load_pt2(PATH).exported_programs["rank_0"] reads. Tensors that several
/// ranks hold alike are stored once: replicated ones, and shards that are replicated over an axis.
///
/// Throws InvalidArgument if PATH exists, or the mesh is not of the ranks 0..n-1.
void write_sharded(const program::Archive& archive, const program::ExportedProgram& program,
                   const Assignment& assignment, const std::filesystem::path& path,
                   const WriteOptions& options = {});

}  // namespace tessera::partition
