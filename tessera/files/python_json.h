#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

namespace tessera::files {

/// JSON as Python's json.dumps writes it by default, so that a file that passes through this
/// library unchanged keeps its bytes: ", " and ": " as separators, non-ASCII characters as \uXXXX,
/// floats with the shortest digits that round-trip ("1e-05", "0.1", "1e+16", "2.0").
std::string python_json(const nlohmann::ordered_json& value);

/// A float as Python's repr() writes it.
std::string python_float(double value);

}  // namespace tessera::files
