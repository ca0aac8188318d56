#pragma once

#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "tessera/program/graph.h"
#include "tessera/sharding/placement.h"

namespace tessera::partition {

/// What a plan demands of one value on one mesh axis: a placement, or any even shard of a
/// dim. A fused weight of queries, keys and values is sharded within each of the three: that is a
/// strided shard, and a plan that says "colwise" need not know it.
struct Pin {
  Placement placement;
  bool any_shard = false;  ///< also StridedShard of the same dim

  bool allows(const Placement& p) const {
    return p == placement || (any_shard && p.is_sharded() && p.dim() == placement.dim());
  }
};

/// The demands on a program. Of a graph input they say how it is given; of another value, how all
/// nodes read it; of an output of the graph, how it is returned.
class Pins {
 public:
  void set(program::ValueId id, int axis, Pin pin) {
    of_value_.insert_or_assign({id.index, axis}, std::move(pin));
  }
  void set_output(size_t output, int axis, Placement placement) {
    of_output_.insert_or_assign({output, axis}, std::move(placement));
  }
  const Pin* find(program::ValueId id, int axis) const {
    const auto found = of_value_.find({id.index, axis});
    return found == of_value_.end() ? nullptr : &found->second;
  }
  bool has(program::ValueId id) const {
    const auto found = of_value_.lower_bound({id.index, 0});
    return found != of_value_.end() && found->first.first == id.index;
  }
  Placement output(size_t output, int axis) const {
    const auto found = of_output_.find({output, axis});
    return found == of_output_.end() ? Replicate() : found->second;
  }

  /// Weights without a demand may be sharded; false: they stay whole.
  bool free_weights = false;
  /// The same of buffers that the program updates: sharded as the weights that fill them.
  bool free_state = false;

 private:
  std::map<std::pair<uint32_t, int>, Pin> of_value_;
  std::map<std::pair<size_t, int>, Placement> of_output_;
};

}  // namespace tessera::partition
