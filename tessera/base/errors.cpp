#include "tessera/base/errors.h"

namespace tessera {

void ensure(bool ok, std::string_view what, std::source_location where) {
  if (!ok) [[unlikely]] {
    throw InternalError(join_text(what, " (a bug in tessera: ", where.file_name(), ":",
                                  static_cast<int64_t>(where.line()), ")"));
  }
}

}  // namespace tessera
