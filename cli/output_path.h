#pragma once

#include <filesystem>

/// Where verbs write: checked before the work, which may take long.
namespace tessera::cli {

/// Throws InvalidArgument unless the directory of the file exists.
void check_output_directory(const std::filesystem::path& file);
/// The same for a file that is written aside and renamed: whatever has the name is replaced, so it
/// must be a regular file, not /dev/null.
void check_replaceable(const std::filesystem::path& file);

}  // namespace tessera::cli
