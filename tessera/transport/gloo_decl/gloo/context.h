#pragma once

#include <chrono>
#include <memory>

// Why this folder exists: libtorch_cpu.so contains Gloo but ships none of its headers, and
// ProcessGroupGloo.hpp cannot be read without them. These are the few declarations it needs, in our
// own words, so that no gloo package has to be installed whose version differs from libtorch's.
//
// What is safe to declare here, and why it holds for every libtorch: ProcessGroupGloo keeps gloo's
// objects behind pointers, so their size is never asked; of their members only two non-virtual ones
// are called, by their exported symbols: Context::setTimeout (from an inline function of that
// header) and Context::closeConnections. Nothing here may be constructed, derived from or called
// through a vtable on our side. Only gloo.cpp sees this folder.
namespace gloo {

class Context {
 public:
  virtual ~Context();
  void setTimeout(std::chrono::milliseconds timeout);
  void closeConnections();
};

}  // namespace gloo
