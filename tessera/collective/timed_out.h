#pragma once

#include <chrono>
#include <stdexcept>

#include "tessera/base/text.h"

namespace tessera::comm {

/// A wait for a peer that ended by its timeout, as opposed to a connection that was closed.
class TimedOut : public std::runtime_error {
 public:
  explicit TimedOut(std::chrono::milliseconds timeout)
      : std::runtime_error(join_text("no answer within ", timeout.count(), " ms")) {}
};

}  // namespace tessera::comm
