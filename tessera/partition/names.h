#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace tessera::partition {

/// Whether a dotted name fits a pattern: `*` stands for any characters of one component, `**` also
/// for dots, `?` for one character.
///
///   layers.*.mlp.up      layers.0.mlp.up         **.up       layers.0.mlp.up
bool matches(std::string_view pattern, std::string_view name);

/// Up to `count` of the names that are most like the text, best first.
std::vector<std::string> nearest_names(std::string_view text, std::span<const std::string> names,
                                       size_t count = 3);

}  // namespace tessera::partition
