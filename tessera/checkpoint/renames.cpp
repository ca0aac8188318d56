#include "tessera/checkpoint/renames.h"

#include <string_view>

#include "tessera/base/errors.h"

namespace tessera::checkpoint {
namespace {

/// Takes the matcher about 1 MB of stack.
constexpr size_t kLongestName = 1024;

/// A glob and its replacement as a regular expression and its format.
std::pair<std::string, std::string> glob_as_regex(std::string_view glob,
                                                  std::string_view replacement) {
  std::string pattern = "^", format;
  int stars = 0;
  for (size_t i = 0; i < glob.size(); ++i) {
    if (glob[i] == '*') {
      const bool any = glob.substr(i, 2) == "**";
      pattern += any ? "(.*)" : "([^.]*)";
      i += any ? 1 : 0;
      ++stars;
      continue;
    }
    if (std::string_view("\\^$.|?+()[]{}").find(glob[i]) != std::string_view::npos) pattern += '\\';
    pattern += glob[i];
  }
  int used = 0;
  for (size_t i = 0; i < replacement.size(); ++i) {
    if (replacement[i] == '*') {
      if (replacement.substr(i, 2) == "**") ++i;
      format += join_text("$", ++used < 10 ? "0" : "", used);  // two digits: "$1" then "0" is $10
    } else {
      format += replacement[i] == '$' ? "$$" : std::string(1, replacement[i]);
    }
  }
  require(used <= stars, "load: '", replacement, "' has more stars than 'glob:", glob, "'");
  return {pattern + "$", format};
}

}  // namespace

Renames::Renames(std::span<const std::pair<std::string, std::string>> renames) {
  constexpr std::string_view kGlob = "glob:";
  for (const auto& [pattern, replacement] : renames) {
    try {
      if (pattern.starts_with(kGlob)) {
        const auto [regex, format] =
            glob_as_regex(std::string_view(pattern).substr(kGlob.size()), replacement);
        patterns_.emplace_back(std::regex(regex), format);
      } else {
        patterns_.emplace_back(std::regex(pattern), replacement);
      }
    } catch (const std::regex_error& error) {
      throw InvalidArgument(
          join_text("load: '", pattern, "' is not a regular expression: ", error.what()));
    }
  }
}

std::string Renames::apply(const std::string& name) const {
  require(
      patterns_.empty() || name.size() <= kLongestName, "load: the checkpoint has a name of ",
      name.size(), " characters, ", [&] { return name.substr(0, 40); },
      "...; names to rename have at most ", kLongestName);
  for (const auto& [pattern, replacement] : patterns_) {
    if (std::regex_search(name, pattern)) return std::regex_replace(name, pattern, replacement);
  }
  return name;
}

}  // namespace tessera::checkpoint
