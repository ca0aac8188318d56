#include "tessera/observe/call_history.h"

#include "tessera/base/text.h"

namespace tessera::comm {

std::string history_note(uint64_t history) {
  if (history == 0) return {};
  return join_text(
      "mark ", history,
      " of kept copies; marks differ where one rank alone wrote to the local part of a "
      "tensor, through to_local(x) or x.data: write to the sharded tensor, or on all "
      "ranks");
}

}  // namespace tessera::comm
