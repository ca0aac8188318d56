#include "tessera/dtensor/kernels/use_kernel.h"

#include <c10/core/GradMode.h>

#include <algorithm>

#include "tessera/dtensor/autograd.h"
#include "tessera/dtensor/dispatch/call_key.h"
#include "tessera/dtensor/dispatch/composite.h"
#include "tessera/dtensor/dispatch/dispatch.h"
#include "tessera/dtensor/dispatch/lazy/lazy_dispatch.h"
#include "tessera/dtensor/kernels/partial_operands.h"
#include "tessera/dtensor/kernels/register.h"
#include "tessera/dtensor/kernels/weight_style.h"
#include "tessera/dtensor/tensor/use_key.h"

namespace tessera::dtensor {
namespace {

/// Makes plain meta tensors beside sharded ones sharded, under the rules for plain tensors. Lazy
/// tensors are computed with plain ones.
void place_plain_meta(const OpEntry& entry, Stack& stack) {
  if (takes_lazy(entry, stack)) return;
  adopt_internal(entry, stack);
  const auto operands = operands_of(entry, stack);
  const auto sharded = std::ranges::find_if(
      operands, [](const Operand& operand) { return operand.sharded != nullptr; });
  if (sharded == operands.end()) return;
  const DeviceMesh mesh = sharded->sharded->sharding().mesh();
  std::vector<std::pair<size_t, at::Tensor>> placed;
  for (size_t i = 0; i < operands.size(); ++i) {
    const at::Tensor& plain = *operands[i].tensor;
    if (operands[i].sharded != nullptr || operands[i].written || !plain.defined()) continue;
    if (is_taken_as_replicated(plain) || is_literal_index(entry, plain)) {
      placed.emplace_back(i, wrap_differentiable(plain, as_replicated(plain, mesh)));
    }
  }
  for (const auto& [operand, tensor] : placed) replace_operand(entry, stack, operand, tensor);
  check_plain(entry, stack);
}

/// The styled weight among the arguments.
struct FoundStyle {
  std::shared_ptr<const WeightStyle> style;
  size_t argument = 0;
};

/// Partial tensors have the key for another reason: they are no weights.
FoundStyle find_style(const OpEntry& entry, const Stack& stack) {
  const size_t base = stack.size() - entry.args.size();
  for (size_t i = 0; i < entry.args.size(); ++i) {
    const c10::IValue& value = stack[base + i];
    if (entry.args[i] != ArgKind::tensor || !value.isTensor()) continue;
    const at::Tensor& tensor = value.toTensor();
    if (!tensor.defined() || !has_use_key(tensor) || is_partial(tensor)) continue;
    if (auto style = weight_style(tensor)) return {std::move(style), i};
  }
  return {};
}

/// Whether the op is a derivative: it uses the weight, but not as the style's op does.
bool is_derivative() { return in_backward() && !c10::GradMode::is_enabled(); }

/// Whether a result is the transposed view of a matrix: t, numpy_T, transpose, permute.
bool is_transpose(const at::Tensor& matrix, const c10::IValue& result) {
  if (matrix.dim() != 2 || !result.isTensor() || result.toTensor().dim() != 2) return false;
  const at::Tensor& view = result.toTensor();
  return view.size(0) == matrix.size(1) && view.size(1) == matrix.size(0) &&
         view.stride(0) == matrix.stride(1) && view.stride(1) == matrix.stride(0) &&
         view.storage_offset() == matrix.storage_offset();
}

/// While a style runs its op: a composite op decomposes into others that use the same weight.
thread_local bool inside_style = false;

bool run_styled(const WeightStyle& style, const StyledCall& call) {
  struct Inside {
    Inside() { inside_style = true; }
    ~Inside() { inside_style = false; }
  };
  const Inside inside;
  return style.call(call);
}

class UseKernel final : public c10::OperatorKernel {
 public:
  void operator()(const c10::OperatorHandle& op, c10::DispatchKeySet keys, Stack* stack) {
    if (const EveryOpHandler handler = every_op_handler()) return handler(op, stack);
    const UsedOp& used = used_op(op);
    if (keys.has_backend(c10::BackendComponent::MetaBit)) {
      place_plain_meta(*used.entry, *stack);
      keys = keys.remove_backend(c10::BackendComponent::MetaBit);
    }
    const bool no_style = inside_style || is_derivative() || is_below_autograd();
    const FoundStyle found = no_style ? FoundStyle() : find_style(*used.entry, *stack);
    const StyledCall call = {op, keys, found.argument, *stack};
    if (found.style != nullptr && run_styled(*found.style, call)) return;
    at::Tensor weight;
    if (found.style != nullptr) weight = call.argument(found.argument).toTensor();
    reduce_operands(used, op, *stack);
    call.run();
    if (found.style == nullptr || !used.entry->is_view || found.argument != 0) return;
    if (!is_transpose(weight, stack->back())) return;
    if (auto style = found.style->transposed()) {
      set_weight_style(stack->back().toTensor(), std::move(style));
    }
  }
};

}  // namespace

void register_use_kernel() {
  // Never freed: ops may run while the process exits. `used`, or leak checkers would not see it.
  [[gnu::used]] static auto* handle =
      new c10::RegistrationHandleRAII(c10::Dispatcher::singleton().registerFallback(
          kUseKey, c10::KernelFunction::makeFromBoxedFunctor(std::make_unique<UseKernel>()),
          "tessera"));
}

}  // namespace tessera::dtensor
