#include "tessera/plan/fuse.h"

#include <algorithm>
#include <limits>

namespace tessera::plan {

Path fuse(const Problem& problem, const Path& path) {
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
      if (cost <= best[end]) {  // of equal ones the longest run
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
