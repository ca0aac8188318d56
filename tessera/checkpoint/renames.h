#pragma once

#include <regex>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace tessera::checkpoint {

/// LoadOptions::renames, ready to use: which name of a state a name of a checkpoint stands for.
class Renames {
 public:
  /// Throws InvalidArgument for what is not a regular expression, and for a replacement with more
  /// stars than its glob.
  explicit Renames(std::span<const std::pair<std::string, std::string>> renames);

  /// Throws InvalidArgument for a name that is longer than any real one: the matcher of the
  /// standard library recurses for each character.
  std::string apply(const std::string& name) const;

 private:
  std::vector<std::pair<std::regex, std::string>> patterns_;
};

}  // namespace tessera::checkpoint
