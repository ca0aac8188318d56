#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include "tessera/fsdp/buffers/group_options.h"
#include "tessera/mesh/device_mesh.h"

/// The device on which the shards of a group are stored (rest), and the one they are computed on:
///
///                      rest          compute
///   default            the device    the same
///   offloaded          the host      the mesh's device (if an accelerator, the host memory is
///                                    page-locked)
///   made on meta       no memory     compute is an error
namespace tessera::fsdp {

struct OffloadPlacement {
  c10::Device rest = c10::kCPU;
  c10::Device compute = c10::kCPU;
  bool pinned = false;

  /// For parameters on device `found` when the group is created.
  static OffloadPlacement of(c10::Device found, const DeviceMesh& mesh,
                             const GroupOptions& options);

  bool on_meta() const { return rest.is_meta(); }
  /// Zeroed memory for shards.
  at::Tensor zeros(int64_t elements, at::ScalarType dtype) const;
  /// A gradient shard from the compute device, converted for storage. With `non_blocking` and
  /// page-locked memory its values arrive when the device's current stream has done the copy.
  at::Tensor to_rest_device(const at::Tensor& shard, at::ScalarType dtype,
                            bool non_blocking = false) const;
};

}  // namespace tessera::fsdp
