#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>

#include <memory>

#include "tessera/base/api.h"

/// Styles on weights: what the op that uses a weight does with its input before, and with its
/// result after. C++ modules have no hooks, so the weight is where a style is attached; the
/// implementations are in parallel/.
///
/// A style is consulted above autograd and before composite ops are decomposed (use_kernel.h), so
/// what it does to the input and the result is recorded like the program's own code. The decision
/// about the op itself then follows from the shardings alone.
namespace tessera::dtensor {

/// One call of an op with a styled weight, its arguments on top of the stack.
struct StyledCall {
  const c10::OperatorHandle& op;
  c10::DispatchKeySet keys;  ///< with which the call arrived
  size_t weight;             ///< the argument that is the weight
  torch::jit::Stack& stack;

  /// Runs the op itself; its results replace the arguments.
  void run() const;
  /// An argument.
  c10::IValue& argument(size_t index) const;
};

class WeightStyle {
 public:
  virtual ~WeightStyle() = default;

  /// Runs the call and returns true, or returns false if the style has nothing to say about the op.
  virtual bool call(const StyledCall& call) const = 0;
  /// The style of the weight's transpose; nullptr if it has none.
  virtual std::shared_ptr<const WeightStyle> transposed() const { return nullptr; }
};

/// Attaches a style to a sharded tensor; nullptr removes it. It stays when the tensor becomes
/// another one in place (distribute_, fully_shard), and is shared by the tensor's transposed views.
TESSERA_API void set_weight_style(const at::Tensor& weight,
                                  std::shared_ptr<const WeightStyle> style);
/// nullptr if it has none.
std::shared_ptr<const WeightStyle> weight_style(const at::Tensor& weight);

}  // namespace tessera::dtensor
