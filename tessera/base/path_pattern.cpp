#include "tessera/base/path_pattern.h"

#include <algorithm>

namespace tessera {
namespace {

/// Levenshtein's: inserted, removed and changed characters.
size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<size_t> row(b.size() + 1);
  for (size_t j = 0; j <= b.size(); ++j) row[j] = j;
  for (size_t i = 1; i <= a.size(); ++i) {
    size_t diagonal = row[0];
    row[0] = i;
    for (size_t j = 1; j <= b.size(); ++j) {
      const size_t changed = diagonal + (a[i - 1] == b[j - 1] ? 0 : 1);
      diagonal = row[j];
      row[j] = std::min({changed, row[j] + 1, row[j - 1] + 1});
    }
  }
  return row[b.size()];
}

/// The set of characters that a pattern begins with: "[a-z]..."; its length is 0 if there is none.
struct CharacterSet {
  explicit CharacterSet(std::string_view pattern) {
    if (pattern.empty() || pattern[0] != '[') return;
    excludes = pattern.size() > 1 && pattern[1] == '!';
    const size_t begin = excludes ? 2 : 1;
    const size_t end = pattern.find(']', begin + 1);  // a first ']' is one of the characters
    if (end == std::string_view::npos) return;
    members = pattern.substr(begin, end - begin);
    length = end + 1;
  }
  bool contains(char c) const {
    bool found = false;
    for (size_t i = 0; i < members.size() && !found; ++i) {
      const bool is_range = i + 2 < members.size() && members[i + 1] == '-';
      found = is_range ? members[i] <= c && c <= members[i + 2] : members[i] == c;
      if (is_range) i += 2;
    }
    return found != excludes;
  }

  std::string_view members = {};
  bool excludes = false;
  size_t length = 0;
};

}  // namespace

bool matches_path(std::string_view pattern, std::string_view path) {
  if (pattern.empty()) return path.empty();
  if (pattern[0] == '*') {
    const bool dots = pattern.size() > 1 && pattern[1] == '*';
    const std::string_view rest = pattern.substr(dots ? 2 : 1);
    for (size_t i = 0; i <= path.size(); ++i) {
      if (matches_path(rest, path.substr(i))) return true;
      if (i < path.size() && path[i] == '.' && !dots) return false;
    }
    return false;
  }
  if (path.empty()) return false;
  if (const CharacterSet set(pattern); set.length != 0) {
    return set.contains(path[0]) && matches_path(pattern.substr(set.length), path.substr(1));
  }
  if (pattern[0] != '?' && pattern[0] != path[0]) return false;
  return matches_path(pattern.substr(1), path.substr(1));
}

std::vector<std::string> nearest_paths(std::string_view text, std::span<const std::string> paths,
                                       size_t count) {
  std::vector<std::pair<size_t, std::string>> scored;
  for (const auto& path : paths) scored.emplace_back(edit_distance(text, path), path);
  std::ranges::sort(scored);
  std::vector<std::string> out;
  for (size_t i = 0; i < std::min(count, scored.size()); ++i) out.push_back(scored[i].second);
  return out;
}

}  // namespace tessera
