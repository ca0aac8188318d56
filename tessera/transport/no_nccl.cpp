#include <torch/csrc/distributed/c10d/Backend.hpp>

#include "tessera/base/errors.h"
#include "tessera/transport/cuda_backend.h"

namespace tessera::comm {

bool has_nccl() { return false; }

c10::intrusive_ptr<c10d::Backend> make_nccl_backend(const NcclOptions& options) {
  throw NotSupported(join_text("group ", options.group_name,
                               ": this build of tessera has no NCCL; build it against a CUDA "
                               "libtorch with nccl.h present (make TORCH=<dir>)"));
}

}  // namespace tessera::comm
