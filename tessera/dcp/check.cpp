#include "tessera/dcp/check.h"

#include <algorithm>
#include <optional>
#include <span>
#include <utility>

#include "tessera/base/errors.h"

namespace tessera::dcp {
namespace {

namespace fs = std::filesystem;

bool overlap(const Box& a, const Box& b) {
  for (size_t d = 0; d < a.begin.size(); ++d) {
    if (a.begin[d] >= b.end[d] || b.begin[d] >= a.end[d]) return false;
  }
  return true;
}

constexpr size_t kMostDims = 1024;  // PyTorch's own functions take 64

using Boxes = std::span<const Box*>;
using Pair = std::pair<const Box*, const Box*>;

/// Two that overlap, of boxes that are sorted by where they begin in dim `d`.
std::optional<Pair> overlap_by_pairs(Boxes boxes, size_t d) {
  for (size_t i = 0; i < boxes.size(); ++i) {
    for (size_t j = i + 1; j < boxes.size() && boxes[j]->begin[d] < boxes[i]->end[d]; ++j) {
      if (overlap(*boxes[i], *boxes[j])) return Pair(boxes[i], boxes[j]);
    }
  }
  return std::nullopt;
}

/// Two that overlap, of boxes that share a point in all dims before `d`. Shards form a grid: along
/// a dim, the intervals of two boxes are the same or disjoint. A group of the same interval is
/// searched along the next dim, so that a grid takes n log n steps; other layouts are compared by
/// pairs.
std::optional<Pair> find_overlap(Boxes boxes, size_t d) {
  if (boxes.size() < 2) return std::nullopt;
  if (d == boxes[0]->begin.size()) return Pair(boxes[0], boxes[1]);
  std::ranges::sort(boxes, {},
                    [d](const Box* box) { return std::pair(box->begin[d], box->end[d]); });
  for (size_t first = 0; first < boxes.size();) {
    size_t last = first;
    bool is_grid = true;
    int64_t end = boxes[first]->end[d];
    for (; last < boxes.size() && boxes[last]->begin[d] < end; ++last) {
      is_grid = is_grid && boxes[last]->begin[d] == boxes[first]->begin[d] &&
                boxes[last]->end[d] == boxes[first]->end[d];
      end = std::max(end, boxes[last]->end[d]);
    }
    const Boxes group = boxes.subspan(first, last - first);
    const auto found = is_grid ? find_overlap(group, d + 1) : overlap_by_pairs(group, d);
    if (found) return found;
    first = last;
  }
  return std::nullopt;
}

}  // namespace

void check_chunks(const std::string& name, const TensorEntry& tensor, const std::string& document) {
  require(tensor.shape.size() <= kMostDims, document, ": ", name, " has an impossible shape, of ",
          tensor.shape.size(), " dims");
  int64_t elements = 1;
  for (const int64_t size : tensor.shape) {
    require(size >= 0 && !__builtin_mul_overflow(elements, size, &elements) &&
                elements <= int64_t{1} << 56,
            document, ": ", name, " has an impossible shape: ", list_text(tensor.shape));
  }
  std::vector<const Box*> boxes;
  __int128 covered = 0;
  for (const auto& chunk : tensor.chunks) {
    bool empty = false;
    for (size_t d = 0; d < tensor.shape.size(); ++d) {
      require(chunk.box.begin[d] >= 0 && chunk.box.begin[d] <= chunk.box.end[d] &&
                  chunk.box.end[d] <= tensor.shape[d],
              document, ": ", name, ": the chunk ", chunk.box, " is not inside of a tensor of ",
              [&] { return shape_text(tensor.shape); });
      if (chunk.box.begin[d] == chunk.box.end[d]) empty = true;
    }
    if (empty) continue;
    boxes.push_back(&chunk.box);
    covered += chunk.box.numel();
  }
  require(!tensor.shape.empty() || boxes.size() <= 1, document, ": ", name,
          " is stored more than once");
  const auto found = find_overlap(boxes, 0);
  require(
      !found, document, ": ", name,
      ": two chunks overlap: ", [&] { return found->first->to_text(); }, " and ",
      [&] { return found->second->to_text(); });
  require(covered == elements, document, ": ", name, " is incomplete: its chunks hold ",
          static_cast<int64_t>(covered), " of ", elements, " elements");
}

fs::path file_inside(const fs::path& directory, const std::string& file) {
  const fs::path relative(file);
  const bool upward = std::ranges::any_of(relative, [](const fs::path& p) { return p == ".."; });
  require(
      !file.empty() && relative.is_relative() && !upward && file.find('\0') == std::string::npos,
      (directory / kMetadataFile).string(), ": it names the file '", file,
      "', which is not inside of the directory");
  std::error_code error;
  const fs::path found = fs::canonical(directory / relative, error);
  require(!error, (directory / relative).string(), ", which ", kMetadataFile,
          " names, cannot be read: ", error.message());
  const fs::path root = fs::canonical(directory, error);
  const auto [end, _] = std::ranges::mismatch(root, found);
  require(!error && end == root.end(), (directory / relative).string(),
          " is a symbolic link that leads out of the directory, to ", found.string());
  return found;
}

}  // namespace tessera::dcp
