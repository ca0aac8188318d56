#pragma once

#include <filesystem>

namespace tessera::checkpoint {

/// Removes a file, or a directory with all that is in it, without following links. Throws Error.
/// (Some builds of libtorch export a std::filesystem::remove_all of their own that crashes here.)
void remove_tree(const std::filesystem::path& path);

/// The same, but the space on the device is freed in the background: that takes as long as the
/// files are large, on a disk mounted with `discard` about 0.12 s for 1 GiB. The names are gone
/// when it returns, and the system frees the space also if this process ends before.
void remove_tree_in_background(const std::filesystem::path& path);

/// Blocks until the space of everything that was removed in the background is free.
void wait_for_removals();

}  // namespace tessera::checkpoint
