#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

/// Paths of modules in plans: "layers.*.attention.wq".
namespace tessera::parallel {

/// Whether the path matches: `*` and `?` within a name between dots.
bool matches_path(std::string_view pattern, std::string_view path);

/// The paths that are most like the pattern, for messages; at most `most`.
std::vector<std::string> nearest_paths(std::string_view pattern, std::span<const std::string> paths,
                                       size_t most = 3);

}  // namespace tessera::parallel
