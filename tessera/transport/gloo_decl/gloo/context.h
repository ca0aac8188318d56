#pragma once

#include <chrono>
#include <memory>

// Why this folder exists: libtorch_cpu.so contains Gloo but ships none of its headers, and
// ProcessGroupGloo.hpp does not compile without them. These are the few declarations it needs,
// written independently, so that no gloo package is required whose version may differ from
// libtorch's.
//
// What is safe to declare here, for every libtorch: ProcessGroupGloo holds gloo's objects by
// pointer, so their size is never used; only two of their non-virtual members are called, by their
// exported symbols: Context::setTimeout (from an inline function of that header) and
// Context::closeConnections. Nothing here may be constructed, derived from or called through a
// vtable on our side. Only transport/gloo.cpp includes this folder.
namespace gloo {

class Context {
 public:
  virtual ~Context();
  void setTimeout(std::chrono::milliseconds timeout);
  void closeConnections();
};

}  // namespace gloo
