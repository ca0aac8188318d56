#include "tessera/dtensor/tensor/kept_gathers.h"

#include <c10/core/InferenceMode.h>

#include <array>

#include "tessera/dtensor/tensor/value_stamp.h"
#include "tessera/exec/reuse_mark.h"
#include "tessera/mesh/per_mesh.h"

namespace tessera::dtensor {
namespace {

using WeakImpl = c10::weak_intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl>;

struct KeptGather {
  WeakImpl of{at::Tensor().getIntrusivePtr()};  ///< keeps the address from being reused
  const c10::TensorImpl* address = nullptr;
  ValueStamp stamp;           ///< of the tensor
  int64_t local_version = 0;  ///< of `local`
  Sharding to;
  at::Tensor local;
};

/// Whether this thread has kept any. Separate, since reading it needs no check for initialization:
/// every freed tensor does.
constinit thread_local bool keeps_any = false;

/// Filled in turn. A slot stays taken when its tensor is freed, since ranks may free theirs at
/// different times; only its memory is released.
struct LastGathers {
  std::array<KeptGather, kMostGathers> slots;
  size_t next = 0;
};

struct GathersOfThread : PerMesh<LastGathers> {
  ~GathersOfThread() { keeps_any = false; }  // tensors may be freed after this, at thread exit
};

thread_local GathersOfThread last_gathers;

LastGathers& gathers_over(const at::Tensor& tensor, const Sharding& to) {
  return last_gathers.of(to.mesh(), exec::moved_axes(sharded_meta(tensor)->sharding(), to));
}

bool is_current(const KeptGather& kept, const at::Tensor& tensor) {
  return kept.stamp == value_stamp(tensor) &&
         kept.local_version == static_cast<int64_t>(kept.local._version());
}

/// Whether an axis that shards becomes replicated.
bool gathers(const Sharding& from, const Sharding& to) {
  for (int axis = 0; axis < from.mesh().ndim() && from.mesh() == to.mesh(); ++axis) {
    if (from.placement(axis).is_sharded() && to.placement(axis).is_replicate()) return true;
  }
  return false;
}

/// Gathers of parameters would outlive the step.
bool can_keep_gather_of(const at::Tensor& tensor, const Sharding& to) {
  const ShardedMeta* meta = sharded_meta(tensor);
  const c10::TensorImpl& impl = *tensor.unsafeGetTensorImpl();
  return meta != nullptr && meta->lazy() == nullptr && counts_writes(tensor) &&
         !meta->sharding().has_partial() && gathers(meta->sharding(), to) &&
         typeid(impl) == typeid(ShardedImpl);
}

}  // namespace

at::Tensor find_gather(const at::Tensor& tensor, const Sharding& to) {
  if (!keeps_any || !can_keep_gather_of(tensor, to)) return {};
  at::Tensor found;
  for (KeptGather& kept : gathers_over(tensor, to).slots) {
    if (!kept.local.defined()) continue;
    if (kept.of.expired()) {  // freed by another thread
      kept.local.reset();
    } else if (kept.address == tensor.unsafeGetTensorImpl() && kept.to == to) {
      if (is_current(kept, tensor)) {
        found = kept.local;
      } else {
        kept.local.reset();
      }
    }
  }
  if (found.defined()) exec::count_reuse(sharded_meta(tensor)->sharding(), to);
  return found;
}

void keep_gather(const at::Tensor& tensor, const Sharding& to, const at::Tensor& local) {
  // Not local.is_inference(): where a rank's part stays as it is, `local` may be an older tensor,
  // and all ranks must keep it or none.
  if (!can_keep_gather_of(tensor, to) || c10::InferenceMode::is_enabled()) return;
  LastGathers& last = gathers_over(tensor, to);
  keeps_any = true;
  note_copied(sharded_meta(tensor)->local());
  last.slots[last.next] = {.of = WeakImpl(tensor.getIntrusivePtr()),
                           .address = tensor.unsafeGetTensorImpl(),
                           .stamp = value_stamp(tensor),
                           .local_version = static_cast<int64_t>(local._version()),
                           .to = to,
                           .local = local};
  last.next = (last.next + 1) % kMostGathers;
}

void drop_gathers(const c10::TensorImpl* tensor) noexcept {
  if (!keeps_any) return;
  last_gathers.for_each([&](LastGathers& last) {
    for (KeptGather& kept : last.slots) {
      if (kept.address == tensor) kept.local.reset();
    }
  });
}

}  // namespace tessera::dtensor
