#pragma once

#include <filesystem>
#include <map>
#include <string>

#include "tessera/dcp/metadata.h"

/// Directories that torch.distributed.checkpoint wrote with use_collectives=False: each rank
/// describes what it has written itself, in a file of its own, and nothing describes all of it.
///
///   step_100/__0.metadata    rows 0 to 3 of w, and rank 0's copy of `bias`
///   step_100/__1.metadata    rows 4 to 7 of w, and rank 1's copy of `bias`
namespace tessera::dcp {

/// The files by rank; empty if there are none.
std::map<int, std::string> rank_metadata_files(const std::filesystem::path& directory);

/// One description of all files. A tensor has the chunks of all ranks. What several ranks have
/// written, a value or the same box, is the one of rank `preferred`, as PyTorch loads it there, or
/// else of the lowest rank that has it. Throws InvalidArgument that names `directory` for a name
/// that is of another shape or kind on two ranks and which `preferred` does not have.
Metadata merge_rank_metadata(const std::map<int, Metadata>& ranks, int preferred,
                             const std::string& directory);

}  // namespace tessera::dcp
