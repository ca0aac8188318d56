#include "tessera/fsdp/buffers/offload_placement.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <c10/core/impl/VirtualGuardImpl.h>

namespace tessera::fsdp {
namespace {

/// This rank's device among those of the mesh.
c10::Device own_device(const DeviceMesh& mesh) {
  const c10::Device any(mesh.device());
  if (any.is_cpu()) return any;
  return c10::impl::VirtualGuardImpl(any.type()).getDevice();
}

}  // namespace

OffloadPlacement OffloadPlacement::of(c10::Device found, const DeviceMesh& mesh,
                                      const GroupOptions& options) {
  if (found.is_meta() || !options.offload) return {found, found, false};
  const c10::Device compute = found.is_cpu() ? own_device(mesh) : found;
  return {c10::kCPU, compute, options.pin_memory && !compute.is_cpu()};
}

at::Tensor OffloadPlacement::zeros(int64_t elements, at::ScalarType dtype) const {
  return at::zeros({elements}, at::TensorOptions(dtype).device(rest).pinned_memory(pinned));
}

at::Tensor OffloadPlacement::to_rest_device(const at::Tensor& shard, at::ScalarType dtype,
                                            bool non_blocking) const {
  if (shard.device() == rest && shard.scalar_type() == dtype) return shard;
  if (!pinned || shard.device() == rest) return shard.to(rest, dtype);
  const auto options = at::TensorOptions(dtype).device(rest).pinned_memory(true);
  return at::empty(shard.sizes(), options).copy_(shard, non_blocking);
}

}  // namespace tessera::fsdp
