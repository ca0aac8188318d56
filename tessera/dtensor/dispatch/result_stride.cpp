#include "tessera/dtensor/dispatch/result_stride.h"

#include <ATen/core/Tensor.h>

#include <algorithm>
#include <array>

#include "tessera/dtensor/output_stride.h"

namespace tessera::dtensor {
namespace {

/// An op whose first result is dense, in a memory format.
struct DenseResult {
  std::string_view op;    ///< without its overload
  size_t input;           ///< the argument that has the result's shape
  bool in_its_format;     ///< the format that the input suggests, otherwise row-major
  bool only_cpu = false;  ///< the kernels of other devices agree with the Meta kernel
};

constexpr std::array kDenseResults = {
    DenseResult{"aten::native_batch_norm", 0, true, true},
    DenseResult{"aten::_native_batch_norm_legit", 0, true, true},
    DenseResult{"aten::_native_batch_norm_legit_functional", 0, true, true},
    DenseResult{"aten::_batch_norm_with_update", 0, true, true},
    DenseResult{"aten::_batch_norm_with_update_functional", 0, true, true},
    DenseResult{"aten::_batch_norm_no_update", 0, true, true},
    DenseResult{"aten::native_batch_norm_backward", 1, true, true},
    DenseResult{"aten::native_layer_norm_backward", 1, false},
    DenseResult{"aten::_softmax_backward_data", 0, false},
    DenseResult{"aten::_log_softmax_backward_data", 0, false},
};

}  // namespace

void correct_strides(std::string_view op, std::span<const c10::IValue> arguments,
                     std::span<std::optional<rules::ResultMeta>> results) {
  if (op.ends_with("out") || results.empty() || !results[0]) return;  // out= keeps its own strides
  const auto* known =
      std::ranges::find(kDenseResults, op.substr(0, op.find('.')), &DenseResult::op);
  if (known == kDenseResults.end()) return;
  const at::Tensor& input = arguments[known->input].toTensor();
  if (known->only_cpu && !input.is_cpu()) return;
  const auto format =
      known->in_its_format ? input.suggest_memory_format() : c10::MemoryFormat::Contiguous;
  results[0]->stride = output_stride(results[0]->shape, format);
}

}  // namespace tessera::dtensor
