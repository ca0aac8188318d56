#include "tessera/dcp/check.h"

#include <algorithm>

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

std::string box_text(const Box& box) {
  return join_text("[", list_text(box.begin), ") to [", list_text(box.end), ")");
}

/// Two boxes overlap only if their first dims do: sorted by these, few pairs need a look.
void check_overlaps(const std::string& name, std::vector<const Box*> boxes,
                    const std::string& document) {
  if (boxes.empty() || boxes[0]->begin.empty()) {
    require(boxes.size() <= 1, document, ": ", name, " is stored more than once");
    return;
  }
  std::ranges::sort(boxes, {}, [](const Box* box) { return box->begin; });
  for (size_t i = 0; i < boxes.size(); ++i) {
    for (size_t j = i + 1; j < boxes.size() && boxes[j]->begin[0] < boxes[i]->end[0]; ++j) {
      require(
          !overlap(*boxes[i], *boxes[j]), document, ": ", name,
          ": two chunks overlap: ", [&] { return box_text(*boxes[i]); }, " and ",
          [&] { return box_text(*boxes[j]); });
    }
  }
}

}  // namespace

void check_chunks(const std::string& name, const TensorEntry& tensor, const std::string& document) {
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
      require(
          chunk.box.begin[d] >= 0 && chunk.box.begin[d] <= chunk.box.end[d] &&
              chunk.box.end[d] <= tensor.shape[d],
          document, ": ", name, ": the chunk ", [&] { return box_text(chunk.box); },
          " is not inside of a tensor of ", [&] { return shape_text(tensor.shape); });
      if (chunk.box.begin[d] == chunk.box.end[d]) empty = true;
    }
    if (empty) continue;
    boxes.push_back(&chunk.box);
    covered += chunk.box.numel();
  }
  check_overlaps(name, std::move(boxes), document);
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
