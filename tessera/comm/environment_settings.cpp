#include "tessera/comm/environment_settings.h"

#include <charconv>
#include <system_error>

#include "tessera/base/errors.h"
#include "tessera/collective/deadline.h"
#include "tessera/comm/processes.h"

namespace tessera::comm {

std::chrono::milliseconds timeout_from(const Environment& environment) {
  const auto text = environment("TESSERA_TIMEOUT_S");
  if (!text || text->empty()) return kDefaultTimeout;
  double seconds = 0;
  const char* end = text->data() + text->size();
  const auto [at, error] = std::from_chars(text->data(), end, seconds);
  require(error == std::errc{} && at == end && seconds > 0, "TESSERA_TIMEOUT_S is \"", *text,
          "\", expected a number of seconds above 0");
  return timeout_of(seconds);
}

bool checks_collectives(const Environment& environment) {
  const auto text = environment("TESSERA_CHECK_COLLECTIVES");
  return text && !text->empty() && *text != "0";
}

}  // namespace tessera::comm
