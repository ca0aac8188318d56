#pragma once

#include <ATen/core/Tensor.h>

#include "tessera/base/api.h"

/// The value that a parameter of fully_shard computes as, for code that needs it as a tensor: a
/// kernel of its own, or the local part of an expert's or a tensor-parallel weight.
///
///   w                                           dp=2,ep=4 : S0#1,S0#0 : 8x6x5, at rest 1x6x5
///   unsharded_parameter(w)                      ep=4 : S0 : 8x6x5
///   bmm(x, to_local(unsharded_parameter(w)))    2x6x5: this rank's experts
///
/// to_local(w) is always the shard at rest: C++ modules have no hooks that could tell when one
/// computes.
namespace tessera {

/// Plain if the parameter is sharded over the axes of fully_shard alone, otherwise sharded over the
/// other axes. Gathers, so every rank of the group must call it. Differentiable: the gradient is
/// reduced over the ranks as that of any use is. Views of parameters are accepted as well. Must not
/// be written to. The result is the gathered memory, which stays allocated for as long as the
/// result, or autograd's graph, uses it.
TESSERA_API at::Tensor unsharded_parameter(const at::Tensor& parameter);

namespace fsdp {

/// Whether a module with this parameter, or view of one, computes: inside a ComputeDtypeGuard, or,
/// if there has been one, inside a backward, except in hooks that run when a gradient is complete.
TESSERA_API bool is_in_compute(const at::Tensor& parameter);

}  // namespace fsdp
}  // namespace tessera
