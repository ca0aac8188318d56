#include "tessera/dtensor/kernels/collective_writes.h"

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/op_registration/op_registration.h>

#include <memory>
#include <string_view>
#include <vector>

#include "tessera/dtensor/dispatch/write_count.h"
#include "tessera/dtensor/tensor/copied_memory.h"

namespace tessera::dtensor {
namespace {

void count_writes(const c10::IValue& value) {
  if (value.isTensor()) {
    count_write_to_copied(value.toTensor());
    count_write_to_memory(value.toTensor());
  } else if (value.isList()) {
    for (const c10::IValue& item : value.toListRef()) count_writes(item);
  }
}

class CollectiveKernel final : public c10::OperatorKernel {
 public:
  explicit CollectiveKernel(std::vector<size_t> written) : written_(std::move(written)) {}

  /// Counts before the call, which may throw halfway or end later.
  void operator()(const c10::OperatorHandle& op, c10::DispatchKeySet keys,
                  torch::jit::Stack* stack) {
    const size_t base = stack->size() - op.schema().arguments().size();
    for (const size_t index : written_) count_writes((*stack)[base + index]);
    op.redispatchBoxed(keys & c10::after_ADInplaceOrView_keyset, stack);
  }

 private:
  std::vector<size_t> written_;
};

/// Indexes of the arguments that the op writes to. Most schemas of c10d do not mark them: it is the
/// first argument of ops whose names end in "_", and of irecv.
std::vector<size_t> written_arguments(const c10::OperatorHandle& op) {
  const std::string_view name = op.operator_name().name;
  const bool is_collective = name.starts_with("c10d::");
  const bool is_functional = name.starts_with("_c10d_functional::");
  if (!is_collective && !is_functional) return {};
  if (is_collective && name.ends_with('_')) return {0};
  if (name == "_c10d_functional::irecv") return {0};
  std::vector<size_t> written;
  const auto& arguments = op.schema().arguments();
  for (size_t i = 0; i < arguments.size(); ++i) {
    const bool is_marked = arguments[i].alias_info() && arguments[i].alias_info()->isWrite();
    const bool may_receive =
        name == "_c10d_functional::batch_p2p_ops" && arguments[i].name() == "tensors";
    if (is_marked || may_receive) written.push_back(i);
  }
  return written;
}

}  // namespace

void register_collective_writes() {
  // Never destroyed: kernels may run during process exit.
  static auto& registered = *new std::vector<c10::RegistrationHandleRAII>();
  auto& dispatcher = c10::Dispatcher::singleton();
  for (const auto& name : dispatcher.getAllOpNames()) {
    const auto op = dispatcher.findSchema(name);
    if (!op) continue;
    auto written = written_arguments(*op);
    if (written.empty()) continue;
    registered.push_back(
        dispatcher.registerImpl(name, c10::DispatchKey::ADInplaceOrView,
                                c10::KernelFunction::makeFromBoxedFunctor(
                                    std::make_unique<CollectiveKernel>(std::move(written))),
                                std::nullopt, nullptr, "tessera"));
  }
}

}  // namespace tessera::dtensor
