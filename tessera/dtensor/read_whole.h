#pragma once

#include <ATen/core/Tensor.h>

#include <string_view>

#include "tessera/base/api.h"

namespace tessera::dtensor {

/// The full tensor, without its history, for a method that reads all values (tolist, numpy). The
/// gather is implicit: the caller asked for values, not for communication, so the policy applies
/// and names `method`.
TESSERA_API at::Tensor read_whole(const at::Tensor& tensor, std::string_view method);

}  // namespace tessera::dtensor
