#pragma once

#include <optional>
#include <span>
#include <vector>

#include "tessera/dtensor/dispatch/decide/decision.h"
#include "tessera/dtensor/dispatch/op/operands.h"
#include "tessera/rules/op_call.h"

namespace tessera::dtensor {

/// Computes the decision for a call that has none yet.
Decided decide(const OpEntry& entry, const c10::OperatorHandle& op, const Stack& stack);

/// Global metadata of an op's results, from its Meta kernel; empty if that gives no answer.
/// Rethrows the kernel's errors about the caller's arguments (shapes that do not match). The kernel
/// reads numbers without recording it (number_use.h).
std::vector<std::optional<rules::ResultMeta>> infer_results(const OpEntry& entry,
                                                            const c10::OperatorHandle& op,
                                                            const Stack& stack);

/// The same by running the op on zeros, for a rank outside the mesh, which has no local results to
/// take it from; empty if sizes depend on values. Reads numbers likewise.
std::vector<std::optional<rules::ResultMeta>> infer_by_running(const OpEntry& entry,
                                                               const c10::OperatorHandle& op,
                                                               const Stack& stack);

}  // namespace tessera::dtensor
