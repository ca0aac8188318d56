#pragma once

#include <vector>

#include "tessera/dtensor/dispatch/dispatch.h"

namespace tessera::dtensor {

/// The tensors of a call, moved to where a handler of the whole op wants them, as the common path
/// would: the policy is asked first, and what travels is marked as the op's.
class MovedOperands {
 public:
  /// One target for each operand. Nothing moves before `local` is called. `written` are operands
  /// that the op also writes to.
  MovedOperands(const OpEntry& entry, const Stack& stack, std::vector<Sharding> targets,
                std::vector<size_t> written = {});

  /// This rank's part; undefined for a tensor that was not given.
  at::Tensor local(size_t operand) const;

  /// Moves a value that is placed as the target into the operand, which keeps its placement.
  void write(size_t operand, const at::Tensor& value) const;

 private:
  const OpEntry& entry_;
  std::vector<Operand> operands_;
  Decision decision_;
};

/// True if all tensors of a call are on this mesh, or plain ones that count as replicated. Where
/// they are not, the common path knows what to say.
bool all_on(const DeviceMesh& mesh, const OpEntry& entry, const Stack& stack);

}  // namespace tessera::dtensor
