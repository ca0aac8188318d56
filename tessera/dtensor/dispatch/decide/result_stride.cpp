#include "tessera/dtensor/dispatch/decide/result_stride.h"

#include <ATen/EmptyTensor.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/add.h>
#include <ATen/ops/clone.h>

#include <algorithm>
#include <array>

#include "tessera/base/errors.h"
#include "tessera/dtensor/output_stride.h"

namespace tessera::dtensor {
namespace {

/// How the first result of an op is laid out.
enum class Layout {
  row_major,
  suggested,  ///< dense, in the memory format that the input suggests
  preserved,  ///< as a clone of the input
  pointwise,  ///< as the sum of the input and the argument after it
};

struct KnownLayout {
  std::string_view op;  ///< without its overload
  size_t input;
  Layout layout;
  bool only_cpu = false;  ///< the kernels of other devices agree with the Meta kernel
};

constexpr std::array kKnown = {
    KnownLayout{"aten::native_batch_norm", 0, Layout::suggested, true},
    KnownLayout{"aten::_native_batch_norm_legit", 0, Layout::suggested, true},
    KnownLayout{"aten::_native_batch_norm_legit_functional", 0, Layout::suggested, true},
    KnownLayout{"aten::_batch_norm_with_update", 0, Layout::suggested, true},
    KnownLayout{"aten::_batch_norm_with_update_functional", 0, Layout::suggested, true},
    KnownLayout{"aten::_batch_norm_no_update", 0, Layout::suggested, true},
    KnownLayout{"aten::native_batch_norm_backward", 1, Layout::suggested, true},
    KnownLayout{"aten::native_layer_norm_backward", 1, Layout::row_major},
    KnownLayout{"aten::_softmax_backward_data", 0, Layout::row_major},
    KnownLayout{"aten::_log_softmax_backward_data", 0, Layout::row_major},
    KnownLayout{"aten::index_fill", 0, Layout::preserved},
    KnownLayout{"aten::copysign", 0, Layout::pointwise},
    KnownLayout{"aten::floor_divide", 0, Layout::pointwise},
    KnownLayout{"aten::div", 0, Layout::pointwise},
    KnownLayout{"aten::native_dropout_backward", 0, Layout::pointwise},
};

at::Tensor meta_copy(const at::Tensor& tensor) {
  return at::Tensor(
      at::detail::empty_strided_meta(tensor.sizes(), tensor.strides(), tensor.scalar_type()));
}

std::vector<int64_t> stride_of(const KnownLayout& known, std::span<const c10::IValue> arguments,
                               std::span<const int64_t> shape) {
  const at::Tensor& input = arguments[known.input].toTensor();
  switch (known.layout) {
    case Layout::row_major:
      return output_stride(shape, c10::MemoryFormat::Contiguous);
    case Layout::suggested:
      return output_stride(shape, input.suggest_memory_format());
    case Layout::preserved:
      return meta_copy(input).clone().strides().vec();
    case Layout::pointwise: {
      const c10::IValue& other = arguments[known.input + 1];
      if (!other.isTensor()) return meta_copy(input).clone().strides().vec();
      return meta_copy(input).add(meta_copy(other.toTensor())).strides().vec();
    }
  }
  throw InternalError("a layout without strides");
}

}  // namespace

void correct_strides(std::string_view op, std::span<const c10::IValue> arguments,
                     std::span<std::optional<rules::ResultMeta>> results) {
  if (op.ends_with("out") || results.empty() || !results[0]) return;  // out= keeps its own strides
  const auto* known = std::ranges::find(kKnown, op.substr(0, op.find('.')), &KnownLayout::op);
  if (known == kKnown.end()) return;
  if (known->only_cpu && !arguments[known->input].toTensor().is_cpu()) return;
  results[0]->stride = stride_of(*known, arguments, results[0]->shape);
}

}  // namespace tessera::dtensor
