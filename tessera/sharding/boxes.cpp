#include "tessera/sharding/boxes.h"

#include <algorithm>

#include "tessera/base/errors.h"
#include "tessera/base/shape.h"

namespace tessera {
namespace {

/// Counts one side of the runs from zero, run after run.
void renumber(Overlap& overlap, int64_t SharedRun::*side) {
  for (auto& dim : overlap.runs) {
    int64_t at = 0;
    for (SharedRun& run : dim) {
      run.*side = at;
      at += run.length;
    }
  }
}

}  // namespace

std::vector<int64_t> Box::shape() const {
  std::vector<int64_t> out;
  for (size_t d = 0; d < begin.size(); ++d) out.push_back(end[d] - begin[d]);
  return out;
}

int64_t Box::numel() const {
  int64_t n = 1;
  for (size_t d = 0; d < begin.size(); ++d) n *= end[d] - begin[d];
  return n;
}

std::string Box::to_text() const {
  return join_text("[", list_text(begin), ") to [", list_text(end), ")");
}

std::vector<Box> held_boxes(const Sharding& sharding, std::span<const int> coordinate) {
  std::vector<Box> boxes(1);
  for (int dim = 0; dim < sharding.ndim(); ++dim) {
    std::vector<Box> grown;
    const auto intervals = held_intervals(sharding, dim, coordinate);
    for (const auto& box : boxes) {
      for (const auto& interval : intervals) {
        Box next = box;
        next.begin.push_back(interval.begin);
        next.end.push_back(interval.end);
        grown.push_back(std::move(next));
      }
    }
    boxes = std::move(grown);
  }
  return boxes;
}

std::vector<int64_t> Overlap::shape() const {
  std::vector<int64_t> shape;
  for (const auto& dim : runs) {
    int64_t length = 0;
    for (const auto& run : dim) length += run.length;
    shape.push_back(length);
  }
  return shape;
}

int64_t Overlap::numel() const { return numel_of(shape()); }

Overlap Overlap::to_piece() const {
  Overlap out = *this;
  renumber(out, &SharedRun::to);
  return out;
}

Overlap Overlap::from_piece() const {
  Overlap out = *this;
  renumber(out, &SharedRun::from);
  return out;
}

std::vector<SharedRun> common_runs(std::span<const Interval> a, std::span<const Interval> b) {
  std::vector<SharedRun> runs;
  int64_t at_a = 0;  // local index of the start of a[i]
  int64_t at_b = 0;
  for (size_t i = 0, j = 0; i < a.size() && j < b.size();) {
    const int64_t begin = std::max(a[i].begin, b[j].begin);
    const int64_t end = std::min(a[i].end, b[j].end);
    if (begin < end) {
      const SharedRun run{at_a + begin - a[i].begin, at_b + begin - b[j].begin, end - begin};
      if (!runs.empty() && runs.back().from + runs.back().length == run.from &&
          runs.back().to + runs.back().length == run.to) {
        runs.back().length += run.length;
      } else {
        runs.push_back(run);
      }
    }
    if (a[i].end < b[j].end) {
      at_a += a[i++].size();
    } else {
      at_b += b[j++].size();
    }
  }
  return runs;
}

Overlap overlap(const Sharding& a, std::span<const int> coordinate_a, const Sharding& b,
                std::span<const int> coordinate_b) {
  require(std::ranges::equal(a.shape(), b.shape()), "overlap of two different tensors: ", a,
          " and ", b);
  Overlap out;
  for (int dim = 0; dim < a.ndim(); ++dim) {
    out.runs.push_back(
        common_runs(held_intervals(a, dim, coordinate_a), held_intervals(b, dim, coordinate_b)));
  }
  return out;
}

}  // namespace tessera
