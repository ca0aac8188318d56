#pragma once

#include "tessera/partition/graph/assignment.h"
#include "tessera/partition/rewrite/emitter.h"

/// Nodes on local tensors: arguments that contain global sizes are replaced by local ones.
///
///   view(x, [2, 6, 8, 4]), heads sharded over 2      view(x, [2, 6, 4, 4])
///   view(x, [s0, 6, 8, 4]), batch sharded over 2     view(x, [s0 // 2, 6, 8, 4])
///   split(x, 8, 2), dim 2 sharded over 2             split_with_sizes(x, [4, 4], 2)
///   sym_size(x, 0), dim 0 sharded over 2             sym_size(x, 0) * 2
///
/// The rules declare which arguments those are (rules::Rule::localise, instead, scale).
namespace tessera::partition {

/// Where a node is, and the rank that its local form is for.
struct NodePlace {
  const program::Graph& global;  ///< with the metadata of global tensors
  size_t index = 0;
  const Assignment& assignment;
  DeviceMesh mesh;  ///< seen from the rank
};

/// Appends the local form of node `place.index`. `node` is that node with its operands replaced by
/// the local values.
void emit_local_node(Emitter& emit, const NodePlace& place, program::Node node);

}  // namespace tessera::partition
