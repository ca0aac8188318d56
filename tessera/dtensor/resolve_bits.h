#pragma once

#include <ATen/core/Tensor.h>

#include "tessera/dtensor/tensor/sharded_tensor.h"

/// Sharded tensors carry no conjugate and negative bits: a view that libtorch computes when it is
/// read is a copy that follows its base (dispatch/gathered_views.h).
namespace tessera::dtensor {

/// Whether libtorch would report the bit of a plain tensor in the place of `view`: `conjugate` of
/// z.conj(), `negative` of z.conj().imag.
bool has_bit(const at::Tensor& view, ViewValue bit);

}  // namespace tessera::dtensor
