#pragma once

#include <ATen/core/boxing/KernelFunction.h>

/// matmul of a tensor [B, S, K] with a matrix, which is how torch::nn::Linear multiplies in C++,
/// folds B and S into one dim. If S is sharded, the folded dim is sharded in strides, and where S
/// does not divide evenly it has to be gathered first. linear multiplies without folding, and has a
/// derivative of its own that does not fold either. By a transposed matrix it computes the same
/// with two ops on sharded tensors, t and linear, instead of three, and backward with four instead
/// of eight.
namespace tessera::dtensor {

/// The kernel of aten::matmul on sharded tensors: linear for such a product, otherwise libtorch's
/// composite one.
c10::KernelFunction matmul_kernel();

}  // namespace tessera::dtensor
