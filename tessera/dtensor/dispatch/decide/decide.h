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
/// Rethrows the kernel's errors about the caller's arguments (shapes that do not match).
std::vector<std::optional<rules::ResultMeta>> infer_results(const OpEntry& entry,
                                                            const c10::OperatorHandle& op,
                                                            const Stack& stack);

/// The same by running the op on zeros, for a rank outside the mesh, which has no local results to
/// take it from; empty if sizes depend on values.
std::vector<std::optional<rules::ResultMeta>> infer_by_running(const OpEntry& entry,
                                                               const c10::OperatorHandle& op,
                                                               const Stack& stack);

/// Whether the results would differ from `metas` for other numeric arguments. Meta kernels do not
/// report what they read, so this is determined by a second call.
bool numbers_change_results(const OpEntry& entry, const c10::OperatorHandle& op, const Stack& stack,
                            std::span<const std::optional<rules::ResultMeta>> metas);

}  // namespace tessera::dtensor
