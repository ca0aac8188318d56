#pragma once

#include <map>
#include <string>
#include <vector>

#include "tessera/partition/graph/pins.h"
#include "tessera/partition/graph/program_view.h"

namespace tessera::partition {

/// The rows that nodes may take on one mesh axis, all of those that their rules allow for whole
/// operands, and of strided ones those that the program has a use for:
///
///   view 2x12x8x8 -> 24x8x8       heads sharded: SS0(2) of the merged dim; flows forward
///   view 2x8x72 -> 2x8x3x12x2     sharded heads need SS2(3) before; flows backward to the weight
///   split 2x8x72 by 24            sharded columns of each part need SS2(3) before
///
/// Left out are shards that leave a rank with nothing, ragged ones, and shards of symbolic dims
/// that need not be divisible.
class AxisRows {
 public:
  AxisRows(const ProgramView& view, const Pins& pins, int axis);

  /// The last one is all replicated. Nodes that are alike share a list.
  const std::vector<rules::Row>& of(size_t node) const { return *rows_[node]; }
  /// How a graph input may be given.
  std::vector<Placement> of_input(program::ValueId id) const;

  /// Why a dim of the node's operands may not be sharded, for messages; empty if unknown.
  std::string why_whole(size_t node) const;

  /// Whether the value may be placed so at all.
  bool allowed(program::ValueId id, const Placement& placement) const;

 private:
  using Placements = std::vector<Placement>;

  bool makes_constant(size_t node) const;
  void want_strided(size_t node);
  void list(size_t node);
  std::vector<rules::Row> rows_of_rule(size_t node) const;
  std::vector<rules::Row> rows_of_joint(size_t node) const;
  std::vector<rules::Row> rows_with(size_t node, size_t operand, const Placement& placement) const;
  std::optional<Placements> joint_results(size_t node, const Placement& placement) const;
  Placements operands_for(size_t node, size_t result, const Placement& wanted) const;
  bool fits(size_t node, const rules::Row& row) const;
  bool passes_given_partials(size_t node, const rules::Row& row) const;
  bool add_strided(program::ValueId id, const Placement& placement);
  std::string signature(size_t node) const;

  const ProgramView& view_;
  const Pins& pins_;
  int axis_;
  int ranks_;
  std::vector<std::shared_ptr<const std::vector<rules::Row>>> rows_;
  std::map<std::string, std::shared_ptr<const std::vector<rules::Row>>> known_;
  std::map<uint32_t, Placements> strided_;      // by value
  std::vector<std::vector<ReduceOp>> partial_;  // by value: as what it can be produced
};

}  // namespace tessera::partition
