#pragma once

#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "tessera/partition/search/axis_rows.h"
#include "tessera/partition/search/compute_model.h"

namespace tessera::partition {

/// One way to run a node: a row for each axis, together.
struct NodeRow {
  std::vector<Sharding> operands;  ///< undefined for absent ones
  std::vector<Sharding> results;
  std::vector<int> picks;  ///< by axis: the row of AxisRows
  std::string_view kernel;
  double compute_seconds = 0;
};
using NodeRowList = std::shared_ptr<const std::vector<NodeRow>>;

/// The ways to run every node of a program on a mesh of one or two axes. Nodes that are alike share
/// a list, so that what is worked out for a list is worked out once for all layers.
class NodeRows {
 public:
  NodeRows(const ProgramView& view, const Pins& pins, const ComputeModel& compute);

  const NodeRowList& of(size_t node) const { return lists_[node]; }
  /// How a graph input may be given.
  std::vector<Sharding> of_input(program::ValueId id) const;
  const AxisRows& axis(int axis) const { return axes_[static_cast<size_t>(axis)]; }

 private:
  NodeRowList make(size_t node) const;
  bool add(size_t node, const std::vector<int>& picks, std::vector<NodeRow>& out) const;
  bool set_results(size_t node, const std::vector<const rules::Row*>& rows, NodeRow& out) const;
  Sharding placed(program::ValueId id, const std::vector<Placement>& placements) const;

  const ProgramView& view_;
  ComputeModel compute_;
  std::vector<AxisRows> axes_;
  std::vector<NodeRowList> lists_;
};

}  // namespace tessera::partition
