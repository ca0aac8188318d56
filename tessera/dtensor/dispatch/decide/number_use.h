#pragma once

#include <ATen/core/dispatch/Dispatcher.h>

#include <optional>
#include <span>

#include "tessera/dtensor/dispatch/op/operands.h"
#include "tessera/rules/op_call.h"

/// Which decisions depend on the numbers of a call (Scalar, float) through the metadata of its
/// results. A rule records what it reads of a number (rules/number.h); a kernel that is run to
/// learn the metadata, the Meta kernel or the op itself, may read anything. So all numbers of such
/// a call are part of the key, unless it is known that they change no shape, stride or dtype:
///
///   my::cut(x, 2.0)               any number: its Meta kernel may read it
///   arange.out(0, 8, 2, out)      any number
///   mul(x, 2.0)                   none: libtorch computes it element by element
///   native_layer_norm(..., 1e-5)  none: in the table
///   my::step_(p, g, 0.1)          none: the result is p
namespace tessera::dtensor {

/// Whether the metadata of the results may depend on the values of numbers. Their types are always
/// part of the key. False if the op has no numbers.
bool numbers_can_change_results(const OpEntry& entry, const c10::OperatorHandle& op);

/// Whether the dispatcher has a kernel for meta tensors, which may read numbers.
bool has_meta_kernel(const c10::OperatorHandle& op);

/// Gives the results of an op with numbers that are arguments which it writes to the metadata of
/// these arguments, whatever a Meta kernel computed for these numbers.
void keep_metas_of_written(const OpEntry& entry, const Stack& stack,
                           std::span<std::optional<rules::ResultMeta>> metas);

}  // namespace tessera::dtensor
