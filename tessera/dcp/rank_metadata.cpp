#include "tessera/dcp/rank_metadata.h"

#include <algorithm>
#include <charconv>
#include <set>

#include "tessera/base/errors.h"

namespace tessera::dcp {
namespace {

namespace fs = std::filesystem;

/// 12 of "__12.metadata".
std::optional<int> rank_of(std::string_view name) {
  constexpr std::string_view kStart = "__";
  if (!name.starts_with(kStart) || !name.ends_with(kMetadataFile)) return std::nullopt;
  const std::string_view digits =
      name.substr(kStart.size(), name.size() - kStart.size() - kMetadataFile.size());
  int rank = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), rank);
  const bool whole = error == std::errc() && end == digits.data() + digits.size();
  return whole && rank >= 0 ? std::optional(rank) : std::nullopt;
}

bool is_same_tensor(const Entry& a, const Entry& b) {
  const auto* x = std::get_if<TensorEntry>(&a);
  const auto* y = std::get_if<TensorEntry>(&b);
  return x != nullptr && y != nullptr && x->shape == y->shape && x->dtype == y->dtype;
}

/// The entries of one name, the preferred one first.
Entry merge_entries(const std::string& name, const std::vector<const Entry*>& entries,
                    bool has_preferred, const std::string& directory) {
  Entry out = *entries.front();
  if (std::holds_alternative<ValueEntry>(out) &&
      std::ranges::all_of(entries, [](const Entry* e) { return e->index() == 1; })) {
    return out;
  }
  const bool same =
      std::ranges::all_of(entries, [&](const Entry* e) { return is_same_tensor(out, *e); });
  require(same || has_preferred, directory, ": ", name,
          " is of another shape or kind on two of the ranks that saved it, each on its own "
          "(use_collectives=False); load it on the ranks that saved it");
  if (!same) return out;
  auto& chunks = std::get<TensorEntry>(out).chunks;
  std::set<std::pair<std::vector<int64_t>, std::vector<int64_t>>> boxes;
  for (const auto& chunk : chunks) boxes.emplace(chunk.box.begin, chunk.box.end);
  for (size_t i = 1; i < entries.size(); ++i) {
    for (const auto& chunk : std::get<TensorEntry>(*entries[i]).chunks) {
      if (boxes.emplace(chunk.box.begin, chunk.box.end).second) chunks.push_back(chunk);
    }
  }
  return out;
}

}  // namespace

std::map<int, std::string> rank_metadata_files(const fs::path& directory) {
  std::map<int, std::string> out;
  for (const auto& item : fs::directory_iterator(directory)) {
    const std::string name = item.path().filename().string();
    const auto rank = rank_of(name);
    if (!rank) continue;
    const auto [found, added] = out.emplace(*rank, name);
    require(added, directory.string(), " holds both ", found->second, " and ", name);
  }
  return out;
}

Metadata merge_rank_metadata(const std::map<int, Metadata>& ranks, int preferred,
                             const std::string& directory) {
  const auto first = ranks.find(preferred);
  std::vector<const Metadata*> order;
  if (first != ranks.end()) order.push_back(&first->second);
  for (const auto& [rank, metadata] : ranks) {
    if (rank != preferred) order.push_back(&metadata);
  }
  std::map<std::string, std::vector<const Entry*>> by_name;
  Metadata out;
  for (const Metadata* metadata : order) {
    for (const auto& [name, entry] : metadata->entries) by_name[name].push_back(&entry);
    for (const auto& [name, path] : metadata->paths) out.paths.emplace(name, path);
  }
  for (const auto& [name, entries] : by_name) {
    const bool has_preferred = first != ranks.end() && first->second.entries.contains(name);
    out.entries.emplace(name, merge_entries(name, entries, has_preferred, directory));
  }
  return out;
}

}  // namespace tessera::dcp
