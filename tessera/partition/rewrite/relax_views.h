#pragma once

#include <vector>

#include "tessera/partition/graph/assignment.h"
#include "tessera/partition/rewrite/emitter.h"

/// Views of tensors that may be laid out otherwise than in the whole program.
///
/// An exported view relies on the strides that its input had when the program was exported. What
/// came out of a collective, or out of a kernel that saw a smaller tensor, may have others:
///
///   transpose(attention).view(2, 8, 24)     the attention's heads were gathered: row-major now,
///                                           and the transpose cannot be viewed
///
/// There `view` becomes `reshape`, which is the same view where it can be one and copies elsewhere;
/// an `as_strided` that only sets strides of dims of size 1 becomes `alias`.
namespace tessera::partition {

class ViewRelaxer {
 public:
  explicit ViewRelaxer(const program::Graph& global) : moved_(global.values.size(), false) {}

  /// Called for each node in order, with its operands replaced by local values. Throws NotSupported
  /// for ops that cannot do without the strides of the file (as_strided).
  void relax(const program::Graph& global, const program::Node& before, program::Node& node,
             const NodeAssignment& chosen, const Assignment& assignment);

 private:
  std::vector<bool> moved_;  // by global value: its strides may not be those of the file
};

}  // namespace tessera::partition
