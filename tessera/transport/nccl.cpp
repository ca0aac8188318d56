#include <c10/cuda/CUDAFunctions.h>

#include <atomic>
#include <torch/csrc/distributed/c10d/ProcessGroupNCCL.hpp>

#include "tessera/base/errors.h"
#include "tessera/transport/cuda_backend.h"

namespace tessera::comm {
namespace {

/// libtorch's group aborts pending calls when it is destroyed, with a warning, unless it was shut
/// down before, which Python programs are asked to do. Here a group is shut down with its world.
class NcclGroup final : public c10d::ProcessGroupNCCL {
 public:
  using ProcessGroupNCCL::ProcessGroupNCCL;

  ~NcclGroup() override {
    if (ended_) return;
    try {
      ProcessGroupNCCL::shutdown();
    } catch (const std::exception&) {  // a peer is gone: waiting calls have the error
    }
  }
  NcclGroup(const NcclGroup&) = delete;
  NcclGroup& operator=(const NcclGroup&) = delete;

  void abort() override {
    ended_ = true;
    ProcessGroupNCCL::abort();
  }
  void shutdown() override {
    if (!ended_.exchange(true)) ProcessGroupNCCL::shutdown();
  }

 private:
  std::atomic<bool> ended_{false};
};

}  // namespace

bool has_nccl() { return c10::cuda::device_count() > 0; }

c10::intrusive_ptr<c10d::Backend> make_nccl_backend(const NcclOptions& options) {
  const int devices = c10::cuda::device_count();
  if (devices == 0) {
    throw NotSupported(join_text("group ", options.group_name,
                                 ": NCCL needs a CUDA device, and this machine has none"));
  }
  require(options.device >= 0 && options.device < devices, "group ", options.group_name,
          ": this rank's CUDA device is ", options.device, ", but the machine has ", devices,
          "; check LOCAL_RANK and CUDA_VISIBLE_DEVICES");
  auto nccl = c10d::ProcessGroupNCCL::Options::create();
  nccl->timeout = options.timeout;
  nccl->is_high_priority_stream = true;  // a transfer that computation waits for comes first
  nccl->group_name = options.group_name;
  auto backend =
      c10::make_intrusive<NcclGroup>(options.store, options.index, options.size, std::move(nccl));
  backend->setBoundDeviceId(c10::Device(c10::kCUDA, static_cast<c10::DeviceIndex>(options.device)));
  return backend;
}

}  // namespace tessera::comm
