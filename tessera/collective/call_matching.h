#pragma once

#include <cstdint>

namespace tessera::comm {

/// A backend that can mark what it sends with what the call is, so that ranks which call different
/// things never take each other's bytes: their calls wait for each other until the timeout instead.
/// Gloo's does (gloo.cpp says what happens otherwise).
class CallMatching {
 public:
  virtual ~CallMatching() = default;

  /// digest() of the next collective.
  virtual void announce(uint32_t digest) = 0;
};

}  // namespace tessera::comm
