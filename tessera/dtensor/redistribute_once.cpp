#include "tessera/dtensor/redistribute_once.h"

#include <ATen/ops/alias.h>
#include <c10/core/InferenceMode.h>

#include <optional>

#include "tessera/dtensor/autograd.h"
#include "tessera/dtensor/tensor/kept_copies.h"
#include "tessera/dtensor/tensor/layout.h"
#include "tessera/dtensor/tensor/sharded_tensor.h"
#include "tessera/exec/redistribute.h"

namespace tessera::dtensor {
namespace {

/// What `make` makes of the tensor's values, as autograd sees the tensor. One that gives no
/// gradient back, though it says requires_grad, was viewed in no_grad mode, and so is its copy:
/// behind a node an op would save its other operands for the copy's gradient.
template <class Make>
at::Tensor copy_of(const at::Tensor& tensor, const Make& make) {
  if (!records_uses(tensor) || takes_gradient(tensor)) {
    return moved_differentiable(tensor, make, std::nullopt);
  }
  const at::Tensor made = make().set_requires_grad(true);
  const at::NoGradGuard no_grad;
  return at::alias(made);
}

/// The tensor itself behind an autograd node. It shares the version counter, so that autograd
/// notices a write to the tensor after an op saved this one.
at::Tensor behind_node(const at::Tensor& tensor) {
  const ShardedMeta* meta = sharded_meta(tensor);
  const at::Tensor out = copy_of(tensor, [&] { return wrap(meta->local(), meta->sharding()); });
  out.unsafeGetTensorImpl()->set_version_counter(tensor.unsafeGetTensorImpl()->version_counter());
  return out;
}

/// redistribute(tensor, to), but with the strides of `to`, which decide whether an op on the copy
/// returns a view. An expanded dim stores each element separately once it is redistributed.
at::Tensor redistribute_strided(const at::Tensor& tensor, const Sharding& to) {
  const Sharding as = with_own_elements(to);
  if (is_row_major(as)) return copy_of(tensor, [&] { return move_data(tensor, to); });
  const ShardedMeta* meta = sharded_meta(tensor);
  return copy_of(tensor, [&] {
    const InternalOps internal(meta->local());
    return wrap(strided_as(exec::redistribute(meta->local(), meta->sharding(), to), as), as);
  });
}

/// The values of a kept copy behind a node, kept as well.
at::Tensor recorded(const at::Tensor& tensor, const Sharding& to, const at::Tensor& copy) {
  const ShardedMeta* meta = sharded_meta(copy);
  const at::Tensor made = copy_of(tensor, [&] { return wrap(meta->local(), meta->sharding()); });
  keep_redistributed(tensor, to, made);
  return made;
}

}  // namespace

at::Tensor redistribute_once(const at::Tensor& tensor, const Sharding& to) {
  const bool same = sharded_meta(tensor)->sharding() == to;
  if (same && !records_uses(tensor)) return tensor;
  // The copy has a tangent, too, and none is kept.
  if (tangent_of(tensor).defined()) return redistribute_strided(tensor, to);
  at::Tensor found = find_redistributed(tensor, to);
  if (found.defined()) return found;
  if (!same && records_uses(tensor)) {
    if (found = find_unrecorded(tensor, to); found.defined()) return recorded(tensor, to, found);
  }
  std::optional<c10::InferenceMode> normal;
  std::optional<c10::NoGradGuard> no_grad;
  if (can_keep_copies(tensor) && c10::InferenceMode::is_enabled()) {
    normal.emplace(false);  // the copy may be used, and saved for backward, outside of this mode
    no_grad.emplace();
  }
  at::Tensor made = same ? behind_node(tensor) : redistribute_strided(tensor, to);
  keep_redistributed(tensor, to, made);
  return made;
}

}  // namespace tessera::dtensor
