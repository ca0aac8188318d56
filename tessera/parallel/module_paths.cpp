#include "tessera/parallel/module_paths.h"

#include <algorithm>
#include <cstdint>

namespace tessera::parallel {
namespace {

/// One name between dots. `*` tries every length.
bool matches_name(std::string_view pattern, std::string_view name) {
  if (pattern.empty()) return name.empty();
  if (pattern.front() == '*') {
    for (size_t skipped = 0; skipped <= name.size(); ++skipped) {
      if (matches_name(pattern.substr(1), name.substr(skipped))) return true;
    }
    return false;
  }
  const bool same = !name.empty() && (pattern.front() == '?' || pattern.front() == name.front());
  return same && matches_name(pattern.substr(1), name.substr(1));
}

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
      row[j] = std::min({row[j] + 1, row[j - 1] + 1, changed});
    }
  }
  return row.back();
}

}  // namespace

bool matches_path(std::string_view pattern, std::string_view path) {
  while (true) {
    const size_t p = pattern.find('.');
    const size_t n = path.find('.');
    if (!matches_name(pattern.substr(0, p), path.substr(0, n))) return false;
    if ((p == std::string_view::npos) != (n == std::string_view::npos)) return false;
    if (p == std::string_view::npos) return true;
    pattern.remove_prefix(p + 1);
    path.remove_prefix(n + 1);
  }
}

std::vector<std::string> nearest_paths(std::string_view pattern, std::span<const std::string> paths,
                                       size_t most) {
  std::vector<std::pair<size_t, std::string>> by_distance;
  for (const std::string& path : paths)
    by_distance.emplace_back(edit_distance(pattern, path), path);
  std::ranges::stable_sort(by_distance, {}, &std::pair<size_t, std::string>::first);
  std::vector<std::string> out;
  for (size_t i = 0; i < std::min(most, by_distance.size()); ++i)
    out.push_back(by_distance[i].second);
  return out;
}

}  // namespace tessera::parallel
