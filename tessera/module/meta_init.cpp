#include "tessera/module/meta_init.h"

#include <ATen/core/dispatch/Dispatcher.h>

#include "tessera/dtensor/tensor/use_key.h"

namespace tessera {
namespace {

constexpr c10::DispatchKey kKey = dtensor::kUseKey;

bool is_tensor(const c10::IValue& value) { return value.isTensor() || value.isTensorList(); }

/// Intercepts every op while a guard is alive; factories without a device get one.
void name_the_device(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  const auto& arguments = op.schema().arguments();
  const size_t base = stack->size() - arguments.size();
  bool like_another = false;
  for (size_t i = 0; i < arguments.size(); ++i) {
    c10::IValue& value = (*stack)[base + i];
    like_another = like_another || is_tensor(value);
    const bool open = value.isNone() && arguments[i].name() == "device";
    if (open && !like_another) value = c10::Device(c10::DeviceType::Meta);
  }
  const c10::impl::ExcludeDispatchKeyGuard below(kKey);
  op.callBoxed(stack);
}

}  // namespace

MetaInit::MetaInit() : guard_((dtensor::set_every_op_handler(name_the_device), kKey)) {}

}  // namespace tessera
