#pragma once

#include <cstddef>
#include <span>

namespace tessera::files {

/// Removes the pages inside of `part` from the memory of this process; the page cache keeps them,
/// and an access maps them again. Only for bytes of a MappedFile that were not written to.
void release_pages(std::span<const std::byte> part);

}  // namespace tessera::files
