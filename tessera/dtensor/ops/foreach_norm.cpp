#include <ATen/TensorOperators.h>
#include <ATen/core/List.h>
#include <ATen/ops/stack.h>

#include <map>

#include "tessera/dtensor/dispatch/decide/row_kernel.h"
#include "tessera/dtensor/ops/install.h"
#include "tessera/dtensor/ops/reductions.h"
#include "tessera/dtensor/parts/norm_of_parts.h"

/// _foreach_norm, which clip_grad_norm_ calls for all gradients at once. Each tensor's power sum is
/// local; the sums of tensors sharded over the same axes are combined in one all_reduce.
namespace tessera::dtensor {
namespace {

/// Tensors that are sharded over the same axes.
struct Together {
  std::vector<size_t> which;
  std::vector<at::Tensor> powers;
};

at::ScalarType dtype_of_norm(const at::Tensor& local, const c10::IValue& given) {
  const auto dtype = given.isNone() ? local.scalar_type() : given.toScalarType();
  return at::isComplexType(dtype) ? at::toRealValueType(dtype) : dtype;
}

/// _foreach_norm(tensors, ord, dtype?)
void foreach_norm(const KernelCall& call) {
  const auto args = call.args();
  const auto locals = args[0].toTensorVector();
  const NormOfParts norm{args[1].toScalar().toDouble()};
  std::vector<at::ScalarType> results;
  // Ordered by first appearance of the axes, so that every rank sends in the same order.
  std::vector<std::vector<int>> keys;
  std::vector<std::map<at::ScalarType, Together>> groups;
  for (size_t i = 0; i < locals.size(); ++i) {
    results.push_back(dtype_of_norm(locals[i], args[2]));
    const std::vector<int> axes = sharded_axes(call.operands[i]);
    size_t at = 0;
    while (at < keys.size() && keys[at] != axes) ++at;
    if (at == keys.size()) {
      keys.push_back(axes);
      groups.emplace_back();
    }
    const at::Tensor power = norm.of_part(locals[i], results.back(), {});
    Together& together = groups[at][power.scalar_type()];
    together.which.push_back(i);
    together.powers.push_back(power);
  }
  std::vector<at::Tensor> norms(locals.size());
  const DeviceMesh mesh = call.operands[0].mesh();
  for (size_t at = 0; at < keys.size(); ++at) {
    for (const auto& [type, together] : groups[at]) {
      const at::Tensor all =
          norm.root(reduce_over_axes(at::stack(together.powers), mesh, keys[at], norm.reduction()));
      for (size_t k = 0; k < together.which.size(); ++k) {
        const size_t i = together.which[k];
        norms[i] = all.select(0, static_cast<int64_t>(k)).to(results[i]);
      }
    }
  }
  call.give(c10::List<at::Tensor>(norms));
}

}  // namespace

void install_foreach_norm() { add_row_kernel("foreach_norm", foreach_norm); }

}  // namespace tessera::dtensor
