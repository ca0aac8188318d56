#pragma once

#include <ATen/core/dispatch/Dispatcher.h>

#include <memory>

#include "tessera/dtensor/dispatch/op_entry.h"

/// Composite ops take sharded tensors apart into ops that have kernels, so they need none of ours.
/// Some make tensors of their own on the way (a causal mask, zeros to scatter into, a constant):
/// plain ones, by the device of their inputs. These are the same on every rank and so count as
/// replicated; what the caller passes is held to the usual rule.
namespace tessera::dtensor {

/// True for a composite op that makes tensors.
bool makes_tensors(const c10::OperatorName& name);

/// The kernel for it: checks the caller's tensors, then runs the composite op.
c10::KernelFunction composite_kernel(std::shared_ptr<const OpEntry> entry);

/// While it lives, this thread runs a function that makes tensors and is no op of libtorch's: one
/// written in Python, say.
class InsideComposite {
 public:
  InsideComposite();
  ~InsideComposite();
  InsideComposite(const InsideComposite&) = delete;
  InsideComposite& operator=(const InsideComposite&) = delete;
};

/// Tells an index that the host language made of a literal (Python's x[[0, 2]]) from a tensor that
/// the caller holds. By default none is.
using IsLiteral = bool (*)(const at::Tensor& plain);
void set_literal_test(IsLiteral test);
/// True for such an index among the arguments of an op that takes indexes.
bool is_literal_index(const OpEntry& entry, const at::Tensor& plain);

/// True for a plain tensor among sharded ones that libtorch made: inside a composite op, or in the
/// formula of a derivative. Not for those of hooks and derivatives of the program, which are held
/// to the usual rule.
bool plain_is_internal(const at::Tensor& plain);

/// True for zeros in the derivative of a custom function: autograd makes them, plain tensors, for
/// outputs that got no gradient. They cannot be told from zeros that the program made there, which
/// are the same on every rank too. Reads the tensor.
bool is_materialized_zero(const at::Tensor& plain);

/// True also where code of the program runs in backward.
bool in_backward_or_composite();

/// libtorch writes sharded values into a plain tensor that it has just made (zeros to scatter
/// into): it becomes one that lies as they do.
void adopt_internal(const OpEntry& entry, torch::jit::Stack& stack);

}  // namespace tessera::dtensor
