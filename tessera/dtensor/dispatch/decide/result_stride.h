#pragma once

#include <ATen/core/ivalue.h>

#include <optional>
#include <span>
#include <string_view>

#include "tessera/rules/op_call.h"

/// Strides of results that libtorch's Meta kernels predict other than its kernels compute them.
///
///   x                        6x4 {1,6}, on CPU
///   native_batch_norm(x)     6x4 {4,1}; its Meta kernel: {1,6}
///
/// Strides decide which views exist: whether flatten() of such a result is a view or a copy.
namespace tessera::dtensor {

/// Replaces the predicted strides of `op` where they are known to differ.
void correct_strides(std::string_view op, std::span<const c10::IValue> arguments,
                     std::span<std::optional<rules::ResultMeta>> results);

}  // namespace tessera::dtensor
