#pragma once

#include <optional>

#include "tessera/dtensor/dispatch/op/operands.h"

/// Ops whose kernels draw random numbers sequentially (multinomial, poisson, attention with
/// dropout). On a shard such a kernel would use the numbers of other elements, so it runs on
/// replicated inputs. Ops with independent elements draw by global index instead (ops/random.cpp).
namespace tessera::dtensor {

/// `drops`: whether the dropout_p of the call is positive; nullopt for an op without one. Attention
/// draws in forward, and again in backward, only with dropout.
bool draws_in_order(const c10::OperatorHandle& op, std::optional<bool> drops);

/// Throws if such an op would draw different numbers on the ranks of `mesh`
/// (dtensor/random/same_generator.h); no effect for other ops.
void check_drawing(const OpEntry& entry, const c10::OperatorHandle& op, const DeviceMesh& mesh,
                   const Stack& stack);

}  // namespace tessera::dtensor
