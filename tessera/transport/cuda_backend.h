#pragma once

#include <c10/util/intrusive_ptr.h>

#include <chrono>
#include <string>

namespace c10d {
class Backend;
class Store;
}  // namespace c10d

/// NCCL, where libtorch has it: nccl.cpp or no_nccl.cpp is built, never both.
namespace tessera::comm {

/// Whether this build holds NCCL and this machine a CUDA device.
bool has_nccl();

struct NcclOptions {
  c10::intrusive_ptr<c10d::Store> store;  ///< of this group alone (a PrefixStore)
  int index = 0;
  int size = 1;
  int device = 0;  ///< this rank's CUDA device
  std::chrono::milliseconds timeout{0};
  std::string group_name;
};

/// NotSupported if has_nccl() is false. Connects at the first collective.
c10::intrusive_ptr<c10d::Backend> make_nccl_backend(const NcclOptions& options);

}  // namespace tessera::comm
