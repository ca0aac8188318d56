#pragma once

#include <ATen/core/Tensor.h>

#include <optional>
#include <string_view>
#include <tuple>

#include "tessera/base/api.h"

/// The attention kernels of libtorch, with one interface: on a block of queries and keys, forward
/// with the log-sum-exp of every query row, backward with the log-sum-exp of all keys.
///
///   cpu_flash   CPU; float64, float32, bfloat16, float16
///   flash       CUDA; bfloat16, float16; no masks
///   efficient   CUDA; float32, bfloat16, float16
///   cudnn       CUDA; bfloat16, float16
///   math        any device and dtype, in slices of rows
namespace tessera {

enum class AttentionKernel { automatic, cpu_flash, flash, efficient, cudnn, math };

TESSERA_API std::string_view attention_kernel_name(AttentionKernel kernel);
/// "automatic", "cpu_flash", ...; the error for others lists them.
TESSERA_API AttentionKernel attention_kernel_from_name(std::string_view name);

namespace parallel {

/// B x H x rows x width, with a divisor of H heads of keys and values.
struct TESSERA_API KernelInputs {
  at::Tensor query, key, value;
  double scale = 1;
  bool causal = false;  ///< query row i attends to key rows 0..i; as many queries as keys
  /// Added to the scores; the dtype of the query, 4 dims that broadcast to B x H x rows x rows.
  std::optional<at::Tensor> mask = std::nullopt;
};

struct TESSERA_API KernelOutputs {
  at::Tensor out;
  at::Tensor log_sum_exp;  ///< B x H x rows, at least float32; -inf for rows without a key
};

struct TESSERA_API KernelGradients {
  at::Tensor query, key, value;
};

/// The kernel that `automatic` stands for. Throws NotSupported if the asked one cannot run on these
/// tensors.
TESSERA_API AttentionKernel choose_kernel(AttentionKernel asked, const at::Tensor& query,
                                          bool masked);

TESSERA_API KernelOutputs attend(AttentionKernel kernel, const KernelInputs& inputs);

/// `out` and `log_sum_exp` are those of all keys, of which the inputs may be a part: the gradients
/// are the addends of this part.
TESSERA_API KernelGradients attend_backward(AttentionKernel kernel, const KernelInputs& inputs,
                                            const at::Tensor& grad_out, const at::Tensor& out,
                                            const at::Tensor& log_sum_exp);

}  // namespace parallel
}  // namespace tessera
