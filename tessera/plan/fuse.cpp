#include "tessera/plan/fuse.h"

#include <algorithm>
#include <limits>

namespace tessera::plan {
namespace {

/// Applies the slice from `second` to `third` to `first`.
Layout slice_only(const Layout& first, const Layout& second, const Layout& third) {
  Layout out = first;
  for (int axis = 0; axis < kMaxAxes; ++axis) {
    if (second.cell(axis) != third.cell(axis)) out.set_cell(axis, third.cell(axis));
  }
  return out;
}

/// Neighbouring local steps act on different axes: moves slices to the front, so that they can
/// merge.
Path slices_first(Path path) {
  for (size_t end = 1; end < path.size(); ++end) {
    for (size_t i = end; i > 0 && path[i].move == Move::slice; --i) {
      PathStep& before = path[i - 1];
      if (!is_local(before.move) || before.move == Move::slice) break;
      const Layout between = slice_only(before.from, before.to, path[i].to);
      path[i] = {before.move, 0, between, path[i].to};
      before = {Move::slice, 0, before.from, between};
    }
  }
  return path;
}

}  // namespace

Path fuse(const Problem& problem, const Path& unsorted) {
  const Path path = slices_first(unsorted);
  // best[i]: the least cost of the first i steps; its last run begins at begin[i].
  const size_t n = path.size();
  std::vector<double> best(n + 1, std::numeric_limits<double>::infinity());
  std::vector<size_t> begin(n + 1, 0);
  best[0] = 0;
  for (size_t end = 1; end <= n; ++end) {
    AxisSet group = 0;
    const int64_t to_bytes = problem.local_bytes(path[end - 1].to);
    for (size_t first = end; first-- > 0 && path[first].move == path[end - 1].move;) {
      group |= path[first].group;
      const double cost =
          best[first] +
          problem.seconds(path[first].move, group, problem.local_bytes(path[first].from), to_bytes);
      if (cost <= best[end]) {  // prefers the longest run
        best[end] = cost;
        begin[end] = first;
      }
    }
  }
  Path out;
  for (size_t end = n; end > 0; end = begin[end]) {
    const size_t first = begin[end];
    AxisSet group = 0;
    for (size_t i = first; i < end; ++i) group |= path[i].group;
    out.push_back({path[first].move, group, path[first].from, path[end - 1].to});
  }
  std::ranges::reverse(out);
  return out;
}

}  // namespace tessera::plan
