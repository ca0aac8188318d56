#include "tessera/observe/call_history.h"

#include "tessera/base/text.h"
#include "tessera/collective/call_matching.h"

namespace tessera::comm {

std::string history_note(uint64_t history) {
  if (history == 0) return {};
  return join_text("mark ", history,
                   "; where the marks of ranks differ: ", history_mistake(history));
}

}  // namespace tessera::comm
