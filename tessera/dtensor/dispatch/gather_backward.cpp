#include "tessera/dtensor/dispatch/gather_backward.h"

#include <ATen/ops/zeros.h>

#include <utility>
#include <vector>

#include "tessera/dtensor/tensor/layout.h"
#include "tessera/dtensor/tensor/sharded_tensor.h"

namespace tessera::dtensor {
namespace {

/// The sharding of the gradient of a look-up along `dim`: in that dim sharded as the tensor was, so
/// that it is never materialized whole, and otherwise as the incoming gradient.
Sharding gradient_of_look_up(const Sharding& self, int dim, const Sharding& grad) {
  std::vector<Placement> placements;
  for (int axis = 0; axis < self.mesh().ndim(); ++axis) {
    const Placement& was = self.placement(axis);
    const Placement& now = grad.placement(axis);
    const auto same_size = [&] {
      const auto d = static_cast<size_t>(now.dim());
      return self.shape()[d] == grad.shape()[d];
    };
    if (was.is_plain_shard() && was.dim() == dim) {
      placements.push_back(was);
    } else {
      const bool follows = now.is_sharded() && now.dim() != dim && same_size();
      placements.push_back(follows ? now : Replicate());
    }
  }
  const Sharding dense(self.mesh(), std::vector<Placement>(placements.size()),
                       {self.shape().begin(), self.shape().end()}, {.dtype = grad.dtype()});
  return dense.with_placements(std::move(placements),
                               self.has_default_order() ? grad.order() : self.order());
}

}  // namespace

bool gather_backward(const OpEntry& entry, torch::jit::Stack& stack) {
  const auto args = torch::jit::last(stack, entry.args.size());
  const at::Tensor grad = args[0].toTensor();
  const at::Tensor self = args[1].toTensor();
  const ShardedMeta* was = sharded_meta(self);
  const ShardedMeta* now = sharded_meta(grad);
  const bool sparse = args[4].toBool();
  if (sparse || was == nullptr || was->lazy() != nullptr || now == nullptr) return false;
  if (was->sharding().mesh() != now->sharding().mesh() || self.dim() != grad.dim()) return false;
  const int64_t dim = args[2].toInt();
  const at::Tensor index = args[3].toTensor();
  const Sharding as = gradient_of_look_up(
      was->sharding(), static_cast<int>(dim < 0 ? dim + self.dim() : dim), now->sharding());
  at::Tensor out = wrap(at::zeros(as_ints(as.local_shape()), now->local().options()), as);
  torch::jit::drop(stack, entry.args.size());
  torch::jit::push(stack, out.scatter_add_(dim, index, grad));
  return true;
}

}  // namespace tessera::dtensor
