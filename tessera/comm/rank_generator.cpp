#include "tessera/comm/rank_generator.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Context.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <torch/library.h>

#include <optional>

namespace tessera::comm {
namespace {

// A mode key for tests of the dispatcher: it can be enabled per thread, no tensor carries it, and
// libtorch has no kernels for it.
constexpr auto kKey = c10::DispatchKey::TESTING_ONLY_GenericMode;

thread_local RankGenerators* current_generators = nullptr;

bool can_have_own(c10::DeviceType type) { return type == c10::kCPU || type == c10::kCUDA; }

/// Fills in a missing generator and redispatches. One object per op; stores the indexes of the
/// relevant arguments.
class FillGenerator final : public c10::OperatorKernel {
 public:
  explicit FillGenerator(const c10::FunctionSchema& schema, size_t generator)
      : count_(schema.arguments().size()), generator_(generator) {
    const auto& arguments = schema.arguments();
    for (size_t i = 0; i < arguments.size(); ++i) {
      if (arguments[i].name() == "device") device_ = i;
    }
  }

  void operator()(const c10::OperatorHandle& op, c10::DispatchKeySet keys,
                  torch::jit::Stack* stack) {
    auto* arguments = &(*stack)[stack->size() - count_];
    if (current_generators != nullptr && arguments[generator_].isNone()) {
      const c10::Device device = device_of(arguments);
      if (can_have_own(device.type())) {
        arguments[generator_] = current_generators->get(device);
      }
    }
    op.redispatchBoxed(keys & c10::DispatchKeySet(c10::DispatchKeySet::FULL_AFTER, kKey), stack);
  }

 private:
  c10::Device device_of(const c10::IValue* arguments) const {
    for (size_t i = 0; i < count_; ++i) {
      if (arguments[i].isTensor() && arguments[i].toTensor().defined()) {
        return arguments[i].toTensor().device();
      }
    }
    if (device_ && arguments[*device_].isDevice()) return arguments[*device_].toDevice();
    return c10::Device(c10::kCPU);
  }

  size_t count_;
  size_t generator_;
  std::optional<size_t> device_;
};

std::optional<size_t> generator_argument(const c10::FunctionSchema& schema) {
  const auto& arguments = schema.arguments();
  for (size_t i = 0; i < arguments.size(); ++i) {
    const auto optional = arguments[i].type()->cast<c10::OptionalType>();
    if (optional && optional->getElementType()->kind() == c10::TypeKind::GeneratorType) return i;
  }
  return std::nullopt;
}

struct Registration {
  Registration() {
    fallback.fallback(torch::CppFunction::makeFallthrough());
    auto& dispatcher = c10::Dispatcher::singleton();
    for (const auto& name : dispatcher.getAllOpNames()) {
      if (!name.name.starts_with("aten::")) continue;
      const auto op = dispatcher.findSchema(name);
      if (!op) continue;
      if (const auto generator = generator_argument(op->schema())) {
        const std::string full =
            name.overload_name.empty() ? name.name : name.name + "." + name.overload_name;
        ops.impl(full.c_str(), torch::CppFunction::makeFromBoxedFunctor(
                                   std::make_unique<FillGenerator>(op->schema(), *generator)));
      }
    }
  }

  torch::Library fallback{torch::Library::IMPL, "_", kKey, __FILE__, __LINE__};
  torch::Library ops{torch::Library::IMPL, "aten", kKey, __FILE__, __LINE__};
};

/// Never destroyed: the dispatcher may be destroyed before our statics.
union Forever {
  Forever() : registration() {}
  ~Forever() {}
  Registration registration;
};

/// Registered with the first thread rank; other programs do not pay the 4 ms.
void ensure_kernels() { static Forever kernels; }

}  // namespace

at::Generator RankGenerators::get(c10::Device device) {
  if (!device.is_cpu() && !device.has_index()) {
    device = c10::impl::VirtualGuardImpl(device.type()).getDevice();
  }
  std::lock_guard lock(mutex_);
  if (const auto found = made_.find(device); found != made_.end()) return found->second;
  at::globalContext().lazyInitDevice(device.type());  // throws if there is no such device
  auto generator = device.is_cpu() ? at::make_generator<at::CPUGeneratorImpl>(seed_)
                                   : at::globalContext().defaultGenerator(device).clone();
  {
    std::lock_guard generator_lock(generator.mutex());
    generator.set_current_seed(seed_);
  }
  return made_.emplace(device, std::move(generator)).first->second;
}

void RankGenerators::manual_seed(uint64_t seed) {
  std::lock_guard lock(mutex_);
  seed_ = seed;
  for (auto& [device, generator] : made_) {
    std::lock_guard generator_lock(generator.mutex());
    generator.set_current_seed(seed);
  }
}

UseGenerators::UseGenerators(RankGenerators& generators) {
  ensure_kernels();
  previous_ = std::exchange(current_generators, &generators);
  key_was_on_ = c10::impl::tls_is_dispatch_key_included(kKey);
  c10::impl::tls_set_dispatch_key_included(kKey, true);
}

UseGenerators::~UseGenerators() {
  current_generators = previous_;
  c10::impl::tls_set_dispatch_key_included(kKey, key_was_on_);
}

uint64_t process_seed() {
  auto generator = at::globalContext().defaultGenerator(c10::Device(c10::kCPU));
  std::lock_guard lock(generator.mutex());
  return generator.current_seed();
}

void manual_seed(uint64_t seed) {
  if (current_generators != nullptr) {
    current_generators->manual_seed(seed);
  } else {
    at::manual_seed(seed);
  }
}

at::Generator default_generator(c10::Device device) {
  if (current_generators != nullptr && can_have_own(device.type())) {
    return current_generators->get(device);
  }
  return at::globalContext().defaultGenerator(device);
}

}  // namespace tessera::comm
