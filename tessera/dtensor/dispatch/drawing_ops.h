#pragma once

#include <optional>

#include "tessera/dtensor/dispatch/dispatch.h"

/// Ops whose own kernels draw random numbers, in an order of their own (multinomial, poisson,
/// attention with dropout): on a shard such a kernel would draw the numbers of other elements, so
/// it runs on replicated inputs. Ops whose elements are independent have handlers (random.h).
namespace tessera::dtensor {

/// `drops`: whether the dropout_p of the call is above zero, none for an op without one. Attention
/// draws in forward, and draws again in backward, only if it drops anything.
bool draws_in_order(const c10::OperatorHandle& op, std::optional<bool> drops);

/// Throws if such an op would draw different numbers on the ranks of `mesh` (same_generator.h);
/// nothing for other ops.
void check_drawing(const OpEntry& entry, const c10::OperatorHandle& op, const DeviceMesh& mesh,
                   const Stack& stack);

}  // namespace tessera::dtensor
