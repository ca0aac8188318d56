#pragma once

#include <string>
#include <string_view>

namespace tessera::cli {

/// Text of a file for a terminal: control characters, which could move the cursor or hide lines, as
/// "\n", "\t" or "\x1b"; U+0080 to U+009F as their bytes. Anything else stays.
std::string printable(std::string_view text);

/// The same for text of several lines, whose ends stay.
std::string printable_lines(std::string_view text);

}  // namespace tessera::cli
