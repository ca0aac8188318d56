#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "tessera/program/graph.h"

namespace tessera::partition {

/// True for ops whose result shares memory with their first operand: they compute nothing.
bool is_view(std::string_view op);

/// Which tensors of a program may share memory, as disjoint sets. Nodes are added in program order:
///
///   y = x.mT; z = y.add_(1); w = z * 2        {x, y, z}, {w}
class Aliases {
 public:
  explicit Aliases(const program::Graph& graph);

  /// The results of views and of in-place ops join the set of their first operand, those of
  /// higher-order ops, whose bodies are not examined, the sets of all.
  void add(const program::Node& node);
  void join(program::ValueId a, program::ValueId b) { parent_[set_of(a)] = set_of(b); }

  /// Equal for two values that may share memory.
  uint32_t set_of(program::ValueId id) const;

 private:
  const program::Graph& graph_;
  std::vector<uint32_t> parent_;
};

/// The tensors that a node reads, and those that it makes.
std::vector<program::ValueId> tensors_read(const program::Graph& graph, const program::Node& node);
std::vector<program::ValueId> tensors_made(const program::Graph& graph, const program::Node& node);

}  // namespace tessera::partition
