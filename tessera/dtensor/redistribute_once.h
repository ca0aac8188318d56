#pragma once

#include <ATen/core/Tensor.h>

#include "tessera/base/api.h"
#include "tessera/sharding/sharding.h"

namespace tessera::dtensor {

/// redistribute(tensor, to) with the strides of `to`, or the kept copy of an earlier call
/// (dtensor/tensor/kept_copies.h). `to` may be the tensor's own sharding: the result is then the
/// tensor behind one autograd node, at which the gradients of all uses are added and made to have
/// that sharding.
TESSERA_API at::Tensor redistribute_once(const at::Tensor& tensor, const Sharding& to);

}  // namespace tessera::dtensor
