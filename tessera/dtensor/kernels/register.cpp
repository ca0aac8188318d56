#include "tessera/dtensor/kernels/register.h"

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/op_registration/op_registration.h>
#include <torch/csrc/autograd/autograd_not_implemented_fallback.h>
#include <torch/library.h>

#include <array>
#include <memory>
#include <mutex>
#include <set>
#include <unordered_map>

#include "tessera/base/errors.h"
#include "tessera/dtensor/dispatch/composite.h"
#include "tessera/dtensor/dispatch/dispatch.h"
#include "tessera/dtensor/dispatch/lazy/lazy_dtypes.h"
#include "tessera/dtensor/dispatch/op/op_name.h"
#include "tessera/dtensor/dispatch/placed_gradient.h"
#include "tessera/dtensor/dispatch/view_replay.h"
#include "tessera/dtensor/kernels/collective_writes.h"
#include "tessera/dtensor/kernels/linear_gradient.h"
#include "tessera/dtensor/kernels/matmul_kernel.h"
#include "tessera/dtensor/kernels/refuse_layouts.h"
#include "tessera/dtensor/kernels/row_major_operand.h"
#include "tessera/dtensor/kernels/typed_kernel.h"
#include "tessera/dtensor/kernels/use_kernel.h"
#include "tessera/rules/registry/registry.h"

namespace tessera::dtensor {
namespace {

class ShardedKernel final : public c10::OperatorKernel {
 public:
  explicit ShardedKernel(std::shared_ptr<const OpEntry> entry) : entry_(std::move(entry)) {}
  void operator()(const c10::OperatorHandle& op, c10::DispatchKeySet, torch::jit::Stack* stack) {
    dispatch(*entry_, op, *stack);
  }

 private:
  std::shared_ptr<const OpEntry> entry_;
};

struct Registered {
  std::mutex mutex;
  std::unordered_map<std::string, std::shared_ptr<OpEntry>> entries;
  std::vector<c10::RegistrationHandleRAII> handles;
  std::unique_ptr<torch::Library> autograd;
  // For ops of other libraries, whether already defined or not.
  std::set<std::string, std::less<>> claimed;
};

Registered& registered() {
  static auto* instance = new Registered();  // kernels may run during process exit
  return *instance;
}

std::shared_ptr<OpEntry> entry_for(const c10::OperatorHandle& op) {
  const std::string name = op_name(op.operator_name());
  std::lock_guard lock(registered().mutex);
  auto& slot = registered().entries[name];
  if (slot == nullptr) slot = std::make_shared<OpEntry>(op);
  return slot;
}

/// For ops of other libraries, and for those defined after load: looked up by name at each call.
class FallbackKernel final : public c10::OperatorKernel {
 public:
  void operator()(const c10::OperatorHandle& op, c10::DispatchKeySet, torch::jit::Stack* stack) {
    dispatch(*entry_for(op), op, *stack);
  }
};

/// For an op that may be defined after its kernel is registered.
class LateKernel final : public c10::OperatorKernel {
 public:
  void operator()(const c10::OperatorHandle& op, c10::DispatchKeySet, torch::jit::Stack* stack) {
    std::call_once(once_, [&] { entry_ = entry_for(op); });
    dispatch(*entry_, op, *stack);
  }

 private:
  std::once_flag once_;
  std::shared_ptr<const OpEntry> entry_;
};

/// Composite ops that are not decomposed:
///   linear                             has its own derivative, and needs no flattening of sharded
///                                      dims: [B, S/n, D] is kept
///   _has_compatible_shallow_copy_type  called by set_data, so that a plain parameter can become a
///                                      sharded one (Module::clone, load)
///   _grid_sampler_2d_cpu_fallback_backward  reads memory; composite in libtorch 2.11
constexpr std::array<std::string_view, 3> kWholeComposites = {
    "aten::linear", "aten::_has_compatible_shallow_copy_type",
    "aten::_grid_sampler_2d_cpu_fallback_backward"};

bool is_composite(const c10::OperatorHandle& op) {
  return op.hasKernelForDispatchKey(c10::DispatchKey::CompositeImplicitAutograd);
}

void add_kernel(const c10::OperatorName& name, c10::DispatchKey key, c10::KernelFunction kernel) {
  registered().handles.push_back(c10::Dispatcher::singleton().registerImpl(
      name, key, std::move(kernel), std::nullopt, nullptr, "tessera"));
}

bool takes(const c10::OperatorHandle& op, const c10::OperatorName& name) {
  if (name.name.rfind("aten::", 0) != 0) return false;
  if (!is_composite(op)) return true;
  return name.overload_name.empty() &&
         std::ranges::find(kWholeComposites, name.name) != kWholeComposites.end();
}

}  // namespace

void register_kernels() {
  static std::once_flag once;
  std::call_once(once, [] {
    auto& dispatcher = c10::Dispatcher::singleton();
    for (const auto& name : dispatcher.getAllOpNames()) {
      const auto op = dispatcher.findSchema(name);
      if (!op) continue;
      if (is_composite(*op) && makes_tensors(name)) {
        for (const auto key : {kKey, c10::DispatchKey::AutogradPrivateUse3}) {
          add_kernel(name, key, composite_kernel(entry_for(*op)));
        }
      }
      if (is_composite(*op)) {
        for (const auto key : {kKey, c10::DispatchKey::AutogradPrivateUse3}) {
          if (auto kernel = dtype_kernel(name)) add_kernel(name, key, *std::move(kernel));
          if (name == c10::OperatorName("aten::matmul", "")) add_kernel(name, key, matmul_kernel());
        }
      }
      if (!takes(*op, name)) continue;
      const auto entry = entry_for(*op);
      if (makes_plain_gradients(name)) {
        add_kernel(name, c10::DispatchKey::AutogradPrivateUse3, placed_gradient_kernel(entry, *op));
      } else if (needs_row_major_operand(name)) {
        add_kernel(name, c10::DispatchKey::AutogradPrivateUse3, row_major_kernel(*op));
      } else if (entry->is_view && op->hasKernelForDispatchKey(c10::DispatchKey::Autograd)) {
        add_kernel(name, c10::DispatchKey::AutogradPrivateUse3, view_kernel(*op));
      }
      add_kernel(name, kKey,
                 typed_or_boxed(entry, *op,
                                c10::KernelFunction::makeFromBoxedFunctor(
                                    std::make_unique<ShardedKernel>(entry))));
      if (entry->name == "aten::linear") {  // its formula exists only beside the kernel
        add_kernel(name, c10::DispatchKey::AutogradPrivateUse3, linear_gradient_kernel(*op));
      }
    }
    registered().handles.push_back(dispatcher.registerFallback(
        kKey, c10::KernelFunction::makeFromBoxedFunctor(std::make_unique<FallbackKernel>()),
        "tessera"));
    // As for libtorch's own backends: an op without a derivative formula runs, and throws when its
    // gradient is requested.
    registered().autograd = std::make_unique<torch::Library>(
        torch::Library::IMPL, "_", c10::DispatchKey::AutogradPrivateUse3, __FILE__, __LINE__);
    registered().autograd->fallback(torch::autograd::basicAutogradNotImplementedFallback());
    register_use_kernel();
    register_refused_layouts();
    register_collective_writes();
  });
}

std::shared_ptr<const OpEntry> entry_of(const c10::OperatorHandle& op) {
  const std::string name = op_name(op.operator_name());
  {
    const std::lock_guard lock(registered().mutex);
    const auto at = registered().entries.find(name);
    if (at != registered().entries.end()) return at->second;
  }
  return std::make_shared<const OpEntry>(op);  // composite: it has no kernel here
}

bool has_kernel(std::string_view op) {
  std::lock_guard lock(registered().mutex);
  return registered().entries.contains(std::string(op));
}

namespace {

template <class Set>
void change_entry(std::string_view op, Set set) {
  std::lock_guard lock(registered().mutex);
  const auto it = registered().entries.find(std::string(op));
  require(it != registered().entries.end(), "no op ", op, " has a sharded kernel");
  set(*it->second);
}

}  // namespace

void add_local_kernel(std::string_view op, const c10::KernelFunction& kernel) {
  // Also called with plain tensors only: a plain input and weight with a bias of fully_shard use
  // our linear, whose derivative then sees no other.
  for (const auto key : {c10::DispatchKey::CPU, c10::DispatchKey::CUDA, c10::DispatchKey::Meta}) {
    add_kernel(c10::OperatorName(std::string(op), ""), key, kernel);
  }
}

void set_decomposition(std::string_view op, Decomposition decomposition) {
  change_entry(op, [&](OpEntry& entry) { entry.decomposition = decomposition; });
}
void set_special_case(std::string_view op, Decomposition decomposition) {
  change_entry(op, [&](OpEntry& entry) {
    entry.decomposition = decomposition;
    entry.may_decline = true;
  });
}
void set_infer(std::string_view op, Infer infer) {
  change_entry(op, [&](OpEntry& entry) { entry.infer = infer; });
}

void claim(std::string_view op) {
  std::lock_guard lock(registered().mutex);
  const std::string name(op);
  if (op.starts_with("aten::") && registered().entries.contains(name)) return;
  if (!registered().claimed.insert(name).second) return;
  registered().handles.push_back(c10::Dispatcher::singleton().registerImpl(
      parse_op_name(op), kKey,
      c10::KernelFunction::makeFromBoxedFunctor(std::make_unique<LateKernel>()), std::nullopt,
      nullptr, "tessera"));
}

bool is_decomposed(std::string_view op) {
  std::lock_guard lock(registered().mutex);
  const auto it = registered().entries.find(std::string(op));
  return it != registered().entries.end() && it->second->decomposition != nullptr &&
         !it->second->may_decline;
}

bool is_made_of_ops(std::string_view op) {
  if (rules::find_rule(op) != nullptr) return false;
  if (is_decomposed(op)) return true;
  const auto known = c10::Dispatcher::singleton().findSchema(parse_op_name(op));
  return known && known->hasKernelForDispatchKey(c10::DispatchKey::CompositeImplicitAutograd);
}

}  // namespace tessera::dtensor
