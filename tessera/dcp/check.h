#pragma once

#include <filesystem>
#include <span>
#include <string>

#include "tessera/dcp/metadata.h"

/// Checks that PyTorch's loader does not make, before anything is read: that the chunks of a tensor
/// cover it exactly, and that files are inside the directory.
namespace tessera::dcp {

/// Throws InvalidArgument that names the tensor if its chunks leave a hole, overlap, or reach
/// beyond it, or if its shape is impossible.
void check_chunks(const std::string& name, const TensorEntry& tensor, const std::string& document);

/// The path of a file that the metadata names. Absolute paths, "..", and symbolic links that lead
/// out of the directory are an InvalidArgument, as is a file that is missing.
std::filesystem::path file_inside(const std::filesystem::path& directory, const std::string& file);

}  // namespace tessera::dcp
