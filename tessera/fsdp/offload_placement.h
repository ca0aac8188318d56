#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include "tessera/fsdp/group_options.h"
#include "tessera/mesh/device_mesh.h"

/// Where the shards of a group rest, and where they are computed with:
///
///                      rest          compute
///   as ever            the device    the same
///   offloaded          the host      the mesh's device; page-locked, if that is an accelerator
///   made on meta       nowhere yet   nothing can be computed
namespace tessera::fsdp {

struct OffloadPlacement {
  c10::Device rest = c10::kCPU;
  c10::Device compute = c10::kCPU;
  bool pinned = false;

  /// For parameters that are on `found` when the group takes them.
  static OffloadPlacement of(c10::Device found, const DeviceMesh& mesh, const GroupOptions& options);

  bool on_meta() const { return rest.is_meta(); }
  /// Zeroed memory for shards.
  at::Tensor zeros(int64_t elements, at::ScalarType dtype) const;
  /// A gradient of the compute device as it is kept.
  at::Tensor to_rest_device(const at::Tensor& shard, at::ScalarType dtype) const;
};

}  // namespace tessera::fsdp
