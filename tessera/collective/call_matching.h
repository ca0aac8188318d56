#pragma once

#include <cstdint>

namespace tessera::comm {

/// A backend that can mark its messages with what the call is, so that ranks in different calls
/// never take each other's bytes: their calls block until the timeout instead. Implemented by
/// Gloo's (transport/gloo.h describes what happens otherwise).
class CallMatching {
 public:
  virtual ~CallMatching() = default;

  /// Sets the digest() of the next collective.
  virtual void announce(uint32_t digest) = 0;
};

}  // namespace tessera::comm
