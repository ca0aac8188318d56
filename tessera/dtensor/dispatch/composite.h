#pragma once

#include <ATen/core/dispatch/Dispatcher.h>

#include <memory>

#include "tessera/base/api.h"
#include "tessera/dtensor/dispatch/op/op_entry.h"

/// Composite ops decompose into ops that have sharded kernels, so they need none of their own. Some
/// create plain tensors on the device of their inputs (a causal mask, zeros to scatter into, a
/// constant). These are equal on every rank and so count as replicated; plain tensors that the
/// caller passes are checked as usual.
namespace tessera::dtensor {

/// Whether a composite op creates tensors.
bool makes_tensors(const c10::OperatorName& name);

/// The kernel for such an op: checks the caller's tensors, then runs the composite op.
c10::KernelFunction composite_kernel(std::shared_ptr<const OpEntry> entry);

/// While it is alive, this thread runs a function that creates tensors and is not an op of
/// libtorch, for example one written in Python.
class TESSERA_API InsideComposite {
 public:
  InsideComposite();
  ~InsideComposite();
  InsideComposite(const InsideComposite&) = delete;
  InsideComposite& operator=(const InsideComposite&) = delete;
};

/// Distinguishes an index that the host language created from a literal (Python's x[[0, 2]]) from a
/// tensor of the caller. The default test returns false.
using IsLiteral = bool (*)(const at::Tensor& plain);
TESSERA_API void set_literal_test(IsLiteral test);
/// Whether `plain` is such an index among the arguments of an indexing op.
bool is_literal_index(const OpEntry& entry, const at::Tensor& plain);

/// Whether a plain tensor mixed with sharded ones was created by libtorch: inside a composite op,
/// or in a derivative formula. False in hooks and derivatives of the program, which are checked as
/// usual.
bool plain_is_internal(const at::Tensor& plain);

/// Whether `plain` is all zeros in the derivative of a custom function: autograd materializes plain
/// zeros for outputs without a gradient. Zeros that the program made there cannot be distinguished,
/// but are equal on every rank too. Reads the tensor.
bool is_materialized_zero(const at::Tensor& plain);

/// Also true while code of the program runs in backward.
bool in_backward_or_composite();

/// For ops of libtorch that write sharded values into a plain tensor they have just created (zeros
/// to scatter into): makes it a sharded tensor with the placements of those values.
void adopt_internal(const OpEntry& entry, torch::jit::Stack& stack);

}  // namespace tessera::dtensor
