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

}  // namespace tessera::comm
