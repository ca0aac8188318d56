#pragma once

#include <c10/util/intrusive_ptr.h>

#include <chrono>
#include <string>

namespace c10d {
class Backend;
class Store;
}  // namespace c10d

/// NCCL, if libtorch has it: either nccl.cpp or no_nccl.cpp is built.
namespace tessera::comm {

/// Whether this build has NCCL and this machine a CUDA device.
bool has_nccl();

struct NcclOptions {
  c10::intrusive_ptr<c10d::Store> store;  ///< of this group only (a PrefixStore)
  int index = 0;
  int size = 1;
  int device = 0;  ///< this rank's CUDA device
  std::chrono::milliseconds timeout{0};
  std::string group_name;
};

/// Throws NotSupported if has_nccl() is false. Connects at the first collective.
c10::intrusive_ptr<c10d::Backend> make_nccl_backend(const NcclOptions& options);

}  // namespace tessera::comm
