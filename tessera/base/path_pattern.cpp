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
  if (path.empty() || (pattern[0] != '?' && pattern[0] != path[0])) return false;
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
