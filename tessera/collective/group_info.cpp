#include "tessera/collective/group_info.h"

#include "tessera/base/text.h"

namespace tessera::comm {

std::string GroupInfo::to_text() const {
  // A world of a thousand ranks must not flood the message that names it.
  constexpr size_t kShown = 16;
  const std::span<const int> all(ranks);
  const std::string list = ranks.size() <= kShown ? list_text(all)
                                                  : join_text(list_text(all.first(kShown)), ",... ",
                                                              ranks.size(), " in all");
  return join_text("group ", name, " (ranks ", list, ")");
}

std::string ranks_text(std::span<const int> ranks) {
  std::string text;
  for (size_t begin = 0; begin < ranks.size();) {
    // The longest run with one stride from here; two ranks are listed, not written as a run.
    size_t end = begin + 1;
    const int stride = end < ranks.size() ? ranks[end] - ranks[begin] : 0;
    while (stride > 0 && end < ranks.size() && ranks[end] - ranks[end - 1] == stride) ++end;
    if (begin > 0) text += ',';
    text += std::to_string(ranks[begin]);
    if (end - begin <= 2) {
      ++begin;
      continue;
    }
    text += '-' + std::to_string(ranks[end - 1]);
    if (stride > 1) text += ':' + std::to_string(stride);
    begin = end;
  }
  return text;
}

}  // namespace tessera::comm
