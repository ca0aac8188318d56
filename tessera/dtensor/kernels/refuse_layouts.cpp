#include "tessera/dtensor/kernels/refuse_layouts.h"

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/op_registration/op_registration.h>

#include <array>
#include <memory>
#include <vector>

#include "tessera/base/errors.h"

namespace tessera::dtensor {
namespace {

/// The keys of a call in which some tensor is sharded and some tensor has such a layout, or which
/// makes one of a sharded tensor.
constexpr auto kKeys = std::to_array<c10::DispatchKey>({
    c10::DispatchKey::SparsePrivateUse3,
    c10::DispatchKey::SparseCsrPrivateUse3,
    c10::DispatchKey::NestedTensorPrivateUse3,
});

class RefuseKernel final : public c10::OperatorKernel {
 public:
  void operator()(const c10::OperatorHandle& op, c10::DispatchKeySet, torch::jit::Stack*) {
    throw NotSupported(join_text(
        op.operator_name().name,
        " of sharded tensors with a sparse or nested one, or with a sparse or nested result: such "
        "layouts cannot be sharded; use dense tensors (x.to_dense(), sparse=False), or compute on "
        "local tensors (to_local)"));
  }
};

}  // namespace

void register_refused_layouts() {
  // Never destroyed: kernels may run during process exit.
  static auto& registered = *new std::vector<c10::RegistrationHandleRAII>();
  for (const c10::DispatchKey key : kKeys) {
    registered.push_back(c10::Dispatcher::singleton().registerFallback(
        key, c10::KernelFunction::makeFromBoxedFunctor(std::make_unique<RefuseKernel>()),
        "tessera"));
  }
}

}  // namespace tessera::dtensor
