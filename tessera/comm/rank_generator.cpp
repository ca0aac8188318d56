#include "tessera/comm/rank_generator.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Context.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/enum_tag.h>
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

/// Kernels of CUDA without a generator argument draw from the process's default generator. Lends it
/// the rank's state while such an op runs; ranks take turns, since a kernel reads the state when it
/// is launched. Sharded tensors pass: the op arrives again with their local tensors.
class LendState final : public c10::OperatorKernel {
 public:
  explicit LendState(const c10::FunctionSchema& schema) : count_(schema.arguments().size()) {}

  void operator()(const c10::OperatorHandle& op, c10::DispatchKeySet keys,
                  torch::jit::Stack* stack) {
    const auto next = keys & c10::DispatchKeySet(c10::DispatchKeySet::FULL_AFTER, kKey);
    const auto device = cuda_device(&(*stack)[stack->size() - count_]);
    if (current_generators == nullptr || lent || !device) return op.redispatchBoxed(next, stack);
    static std::mutex turns;
    const std::lock_guard lock(turns);
    const Lent state(at::globalContext().defaultGenerator(*device),
                     current_generators->get(*device));
    op.redispatchBoxed(next, stack);
  }

 private:
  /// Inside an op that has the state already: one that is made of others.
  static thread_local bool lent;

  class Lent {
   public:
    Lent(at::Generator process, const at::Generator& rank)
        : process_(std::move(process)), own_(process_.graphsafe_get_state()) {
      process_.graphsafe_set_state(rank);
      lent = true;
    }
    ~Lent() {
      lent = false;
      process_.graphsafe_set_state(own_);
    }
    Lent(const Lent&) = delete;
    Lent& operator=(const Lent&) = delete;

   private:
    at::Generator process_;
    at::Generator own_;
  };

  std::optional<c10::Device> cuda_device(const c10::IValue* arguments) const {
    for (size_t i = 0; i < count_; ++i) {
      if (!arguments[i].isTensor()) continue;
      const at::Tensor& tensor = arguments[i].toTensor();
      if (tensor.defined() && tensor.key_set().has_backend(c10::BackendComponent::CUDABit)) {
        return tensor.device();
      }
    }
    return std::nullopt;
  }

  size_t count_;
};

thread_local bool LendState::lent = false;

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
      const std::string full =
          name.overload_name.empty() ? name.name : name.name + "." + name.overload_name;
      if (const auto generator = generator_argument(op->schema())) {
        ops.impl(full.c_str(), torch::CppFunction::makeFromBoxedFunctor(
                                   std::make_unique<FillGenerator>(op->schema(), *generator)));
      } else if (op->hasTag(at::Tag::nondeterministic_seeded)) {
        ops.impl(full.c_str(), torch::CppFunction::makeFromBoxedFunctor(
                                   std::make_unique<LendState>(op->schema())));
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
