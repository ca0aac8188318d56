#include "tessera/dtensor/kernels/row_major_operand.h"

#include <ATen/core/Tensor.h>
#include <ATen/core/stack.h>

#include <memory>
#include <utility>

namespace tessera::dtensor {
namespace {

class RowMajorKernel final : public c10::OperatorKernel {
 public:
  explicit RowMajorKernel(c10::SafeKernelFunction inner) : inner_(std::move(inner)) {}

  void operator()(const c10::OperatorHandle& op, c10::DispatchKeySet keys,
                  torch::jit::Stack* stack) {
    c10::IValue& matrices = (*stack)[stack->size() - op.schema().arguments().size()];
    matrices = matrices.toTensor().contiguous();
    inner_.callBoxed(op, keys, stack);
  }

 private:
  c10::SafeKernelFunction inner_;
};

}  // namespace

bool needs_row_major_operand(const c10::OperatorName& name) {
  return name.overload_name.empty() &&
         (name.name == "aten::_linalg_det" || name.name == "aten::_linalg_slogdet");
}

c10::KernelFunction row_major_kernel(const c10::OperatorHandle& op) {
  return c10::KernelFunction::makeFromBoxedFunctor(std::make_unique<RowMajorKernel>(
      op.getComputedKernelForDispatchKey(c10::DispatchKey::AutogradPrivateUse3)));
}

}  // namespace tessera::dtensor
