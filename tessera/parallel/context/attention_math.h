#pragma once

#include "tessera/parallel/context/attention_kernel.h"

/// Attention by matrix products, for tensors that no kernel takes (float64 on CUDA, other devices).
/// Works on a slice of query rows at a time: scores of at most 2^22 elements are held.
namespace tessera::parallel {

KernelOutputs attend_math(const KernelInputs& inputs);

KernelGradients attend_math_backward(const KernelInputs& inputs, const at::Tensor& grad_out,
                                     const at::Tensor& out, const at::Tensor& log_sum_exp);

}  // namespace tessera::parallel
