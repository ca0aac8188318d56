#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/base/api.h"

/// Paths of modules and parameters in plans: "layers.*.attention.wq".
namespace tessera {

/// Whether a dotted path fits a pattern: `*` stands for any characters of one component, `**` also
/// for dots, `?` for one character, `[qkv]` and `[0-3]` for one of those, `[!0]` for one of the
/// others. A `[` without its `]` stands for itself.
///
///   layers.*.mlp.up   layers.0.mlp.up      **.up   layers.0.mlp.up      w[qkv]   wk
TESSERA_API bool matches_path(std::string_view pattern, std::string_view path);

/// Up to `count` of the paths that are most like the text, best first; for error messages.
std::vector<std::string> nearest_paths(std::string_view text, std::span<const std::string> paths,
                                       size_t count = 3);

}  // namespace tessera
