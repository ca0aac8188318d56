#include "tessera/dtensor/dispatch/lazy/lazy_dtypes.h"

#include <ATen/ops/conv1d_ops.h>
#include <ATen/ops/conv2d_ops.h>
#include <ATen/ops/conv3d_ops.h>
#include <ATen/ops/prelu_ops.h>
#include <ATen/ops/rms_norm_ops.h>

#include <algorithm>
#include <array>
#include <string_view>
#include <vector>

#include "tessera/base/text.h"
#include "tessera/dtensor/tensor/sharded_tensor.h"

namespace tessera::dtensor {
namespace {

/// Gives access to a protected member of libtorch's TensorImpl: no public function changes only the
/// dtype.
struct DtypeMember : c10::TensorImpl {
  static caffe2::TypeMeta& of(c10::TensorImpl& impl) { return impl.*&DtypeMember::data_type_; }
};

/// How the arguments of a failed op relate to its failure.
struct DtypesOfArguments {
  void add(const at::Tensor& tensor) {
    if (!tensor.defined() || !tensor.is_floating_point()) return;
    differ = differ || (first && *first != tensor.scalar_type());
    first = tensor.scalar_type();
    if (lazy_local(tensor) != nullptr) lazy.push_back(sharded_meta(tensor)->lazy());
  }
  void add(const std::optional<at::Tensor>& tensor) {
    if (tensor) add(*tensor);
  }
  template <class Other>
  void add(const Other&) {}

  std::optional<at::ScalarType> first;
  bool differ = false;
  std::vector<std::shared_ptr<LazyLocal>> lazy;
};

/// Unboxed, so that ops on sharded tensors that are not lazy lose only a few nanoseconds.
template <class Op, class Schema>
class DtypeKernel;

template <class Op, class Result, class... Args>
class DtypeKernel<Op, Result(Args...)> final : public c10::OperatorKernel {
 public:
  Result operator()(Args... args) {
    ReportComputeDtypes as_computed;
    if (LazyLocal::any()) (as_computed.add(args), ...);
    try {
      // No backend registers kernels for this key, so a composite op resolves to its composite
      // kernel.
      return Op::redispatch(c10::DispatchKeySet(c10::DispatchKey::AutogradPrivateUse2),
                            std::forward<Args>(args)...);
    } catch (c10::Error& error) {
      DtypesOfArguments dtypes;
      (dtypes.add(args), ...);
      if (dtypes.differ) explain_dtypes(error, dtypes.lazy);
      throw;
    }
  }
};

struct Named {
  std::string_view name;
  std::string_view overload;
  c10::KernelFunction (*make)();
};

template <class Op>
c10::KernelFunction make_dtype_kernel() {
  using Kernel = DtypeKernel<Op, typename Op::schema>;
  return c10::KernelFunction::makeFromUnboxedFunctor<false, Kernel>(std::make_unique<Kernel>());
}

template <class... Ops>
constexpr std::array<Named, sizeof...(Ops)> named() {
  return {Named{Ops::name, Ops::overload_name, make_dtype_kernel<Ops>}...};
}

constexpr auto kCompareDtypes =
    named<at::_ops::conv1d, at::_ops::conv1d_padding, at::_ops::conv2d, at::_ops::conv2d_padding,
          at::_ops::conv3d, at::_ops::conv3d_padding, at::_ops::prelu, at::_ops::rms_norm>();

}  // namespace

void report_dtype(const at::Tensor& tensor, at::ScalarType dtype) {
  DtypeMember::of(*tensor.unsafeGetTensorImpl()) = c10::scalarTypeToTypeMeta(dtype);
}

void ReportComputeDtypes::add(const at::Tensor& tensor) {
  const LazyLocal* lazy = lazy_local(tensor);
  if (lazy == nullptr) return;
  const auto dtype = lazy->compute_dtype();
  if (!dtype || *dtype == tensor.scalar_type()) return;
  changed_.emplace_back(tensor, tensor.scalar_type());
  report_dtype(tensor, *dtype);
}

void ReportComputeDtypes::add_arguments(const OpEntry& entry, const torch::jit::Stack& stack) {
  for (const c10::IValue& value : torch::jit::last(stack, entry.args.size())) {
    if (value.isTensor()) {
      add(value.toTensor());
    } else if (value.isTensorList()) {
      for (const at::Tensor& tensor : value.toTensorVector()) add(tensor);
    }
  }
}

std::optional<c10::KernelFunction> dtype_kernel(const c10::OperatorName& name) {
  const auto found = std::ranges::find_if(kCompareDtypes, [&](const Named& one) {
    return one.name == name.name && one.overload == name.overload_name;
  });
  if (found == kCompareDtypes.end()) return std::nullopt;
  return found->make();
}

void explain_dtypes(c10::Error& error, std::span<const std::shared_ptr<LazyLocal>> used) {
  // A nested op may already have added it.
  if (std::string_view(error.what_without_backtrace()).find("param_dtype") !=
      std::string_view::npos) {
    return;
  }
  for (const auto& lazy : used) {
    const auto computed = lazy->compute_dtype();
    const auto rests = lazy->shards().scalar_type();
    if (!computed || *computed == rests) continue;
    error.add_context(join_text(
        "among the arguments is a parameter of fully_shard that rests in ", c10::toString(rests),
        " and computes in ", c10::toString(*computed),
        ", as its mixed precision policy says (param_dtype); cast what it meets to that type, or "
        "let the policy cast the inputs of its module (cast_forward_inputs)"));
    return;
  }
}

void match_running_statistics(const OpEntry& entry, torch::jit::Stack& stack) {
  if (entry.name != "aten::_batch_norm_impl_index" && entry.name != "aten::instance_norm") return;
  const size_t base = stack.size() - entry.args.size();
  const c10::IValue mean = stack[base + 3];
  if (!mean.isTensor() || !mean.toTensor().defined()) return;
  for (const size_t i : {base + 1, base + 2}) {
    if (!stack[i].isTensor() || lazy_local(stack[i].toTensor()) == nullptr) continue;
    stack[i] = stack[i].toTensor().to(mean.toTensor().scalar_type());
  }
}

}  // namespace tessera::dtensor
