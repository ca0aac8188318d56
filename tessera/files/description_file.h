#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <vector>

#include "tessera/files/input_file.h"

/// Small files that describe the large ones beside them and are read whole: indices, checksums.
namespace tessera::files {

/// The whole of a file. Throws InvalidArgument that names it if it has more than `most` bytes.
std::vector<std::byte> read_whole(const InputFile& file, uint64_t most);

/// The most bytes that a file which describes its whole directory may have: as much as all other
/// files there and 64 MiB, and never more than 2 GiB.
uint64_t most_description_bytes(const std::filesystem::path& file);

}  // namespace tessera::files
