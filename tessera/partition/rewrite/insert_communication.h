#pragma once

#include <map>
#include <optional>
#include <vector>

#include "tessera/cost/machine.h"
#include "tessera/partition/graph/assignment.h"
#include "tessera/partition/rewrite/emitter.h"
#include "tessera/partition/rewrite/lower_plan.h"

/// Writes the redistributions of an assignment into the program of a rank, each once, for all nodes
/// that read it.
///
/// A collective starts as soon as its input is there and is waited for when the first reader comes,
/// so that the nodes between overlap with the messages:
///
///   linear_1 = linear(...)
///   all_reduce = all_reduce(linear_1)       starts here
///   linear_2 = linear(...)                  does not depend on it
///   wait = wait_tensor(all_reduce)
///   add = add(linear_2, wait)
///
/// Inputs of the program are there from its start; what is gathered of them would all be held at
/// once, so those start a few nodes ahead of their reader instead.
namespace tessera::partition {

class Communication {
 public:
  Communication(Emitter& emit, const program::Graph& global, const Assignment& assignment,
                const DeviceMesh& mesh, const cost::Machine& machine);

  /// To be called before each node in order, and with the number of nodes before the outputs.
  void before_node(size_t index);

  /// The local value of `value` brought to `needed`.
  program::ValueId local(program::ValueId value, const Sharding& needed) const;

 private:
  struct Move {
    const Redistribution* what = nullptr;
    plan::Plan plan;
    std::optional<size_t> source;  ///< an earlier move of the same value
    size_t start_before = 0;       ///< the node that it starts ahead of
    Finish finish;
    std::optional<program::ValueId> done;
  };

  void place_starts(const program::Graph& global);
  void start(Move& move);
  void complete(size_t index);

  Emitter& emit_;
  const Assignment& assignment_;
  std::vector<Move> moves_;
  std::multimap<size_t, size_t> starts_;   // by node: moves
  std::multimap<size_t, size_t> readers_;  // by first reader
};

/// True for an op that writes to one of its arguments: "aten::add_".
bool is_in_place(const program::Node& node);

}  // namespace tessera::partition
