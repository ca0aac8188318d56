#pragma once

#include <vector>

#include "tessera/dtensor/dispatch/dispatch.h"

namespace tessera::dtensor {

/// The tensors of a call, redistributed as a handler needs them, in the same way as on the common
/// path: the policy is checked first, and the communication is attributed to the op.
class MovedOperands {
 public:
  /// One target per operand. Nothing is communicated before `local` is called. `written` are
  /// operands that the op also writes to.
  MovedOperands(const OpEntry& entry, const Stack& stack, std::vector<Sharding> targets,
                std::vector<size_t> written = {});

  /// This rank's part; undefined for an absent tensor.
  at::Tensor local(size_t operand) const;

  /// Redistributes a value with the target sharding into the operand, which keeps its own.
  void write(size_t operand, const at::Tensor& value) const;

 private:
  const OpEntry& entry_;
  std::vector<Operand> operands_;
  Decision decision_;
};

/// Whether all tensors of a call are on this mesh, or plain ones that count as replicated. If not,
/// the common path reports the error.
bool all_on(const DeviceMesh& mesh, const OpEntry& entry, const Stack& stack);

}  // namespace tessera::dtensor
