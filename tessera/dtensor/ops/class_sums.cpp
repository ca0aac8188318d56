#include "tessera/dtensor/ops/class_sums.h"

#include "tessera/dtensor/ops/reductions.h"
#include "tessera/exec/reuse_mark.h"
#include "tessera/mesh/per_mesh.h"

namespace tessera::dtensor {
namespace {

using WeakImpl = c10::weak_intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl>;

struct KnownSums {
  WeakImpl of{at::Tensor().getIntrusivePtr()};  ///< keeps the address from being reused
  const c10::TensorImpl* address = nullptr;
  uint32_t version = 0;  ///< counts writes (dispatch/write_count.h)
  Sharding as;
  int64_t dim = 0;
  at::Tensor sums;
};

thread_local PerMesh<KnownSums> known_sums;

KnownSums& sums_over(const Sharding& as, int64_t dim) {
  uint64_t axes = 0;
  for (const int axis : sharded_axes(as, static_cast<int>(dim))) axes |= uint64_t{1} << axis;
  return known_sums.of(as.mesh(), axes);
}

uint32_t version_of(const at::Tensor& tensor) {
  return tensor.unsafeGetTensorImpl()->version_counter().current_version();
}

}  // namespace

void keep_class_sums(const at::Tensor& grad, const Sharding& as, int64_t dim,
                     const at::Tensor& sums) {
  if (grad.is_inference()) return;  // counts no writes
  sums_over(as, dim) = {.of = WeakImpl(grad.getIntrusivePtr()),
                        .address = grad.unsafeGetTensorImpl(),
                        .version = version_of(grad),
                        .as = as,
                        .dim = dim,
                        .sums = sums};
}

at::Tensor take_class_sums(const at::Tensor& grad, const Sharding& as, int64_t dim) {
  if (grad.is_inference()) return {};
  KnownSums& known = sums_over(as, dim);
  if (!known.sums.defined() || known.address != grad.unsafeGetTensorImpl() || known.dim != dim ||
      known.as != as || known.version != version_of(grad)) {
    return {};
  }
  const Sharding addends =
      addends_over(known.sums, as.mesh(), sharded_axes(as, static_cast<int>(dim)), ReduceOp::sum);
  exec::count_reuse(addends, addends.replicated());
  return std::move(known.sums);
}

}  // namespace tessera::dtensor
