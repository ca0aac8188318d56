#include "tessera/base/ranks_text.h"

#include "tessera/base/text.h"

namespace tessera {

std::string ranks_text(std::span<const int> ranks, RankRuns runs) {
  std::string out;
  for (size_t begin = 0; begin < ranks.size();) {
    // The longest run with one stride from here.
    size_t end = begin + 1;
    const int stride = end < ranks.size() ? ranks[end] - ranks[begin] : 0;
    if (stride == 1 || (stride > 1 && runs == RankRuns::strided)) {
      while (end < ranks.size() && ranks[end] - ranks[end - 1] == stride) ++end;
    }
    if (end - begin < 3) end = begin + 1;
    if (begin > 0) out += ',';
    append_text(out, ranks[begin]);
    if (end - begin > 1) out += join_text("-", ranks[end - 1]);
    if (end - begin > 1 && stride > 1) out += join_text(":", stride);
    begin = end;
  }
  return out;
}

}  // namespace tessera
