#pragma once

#include <memory>

namespace gloo::transport {

// See gloo/context.h. Both are used by pointer only.
class Device {
 public:
  virtual ~Device() = 0;
};

class UnboundBuffer {
 public:
  virtual ~UnboundBuffer() = 0;
};

}  // namespace gloo::transport
