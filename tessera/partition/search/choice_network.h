#pragma once

#include <map>
#include <optional>
#include <vector>

#include "tessera/partition/search/cost_network.h"
#include "tessera/partition/search/move_costs.h"
#include "tessera/partition/search/node_rows.h"

namespace tessera::partition {

struct NetworkOptions {
  cost::Machine machine;
  ComputeModel compute;
  /// Weights, and what is made of weights alone, may be gathered when the program runs.
  bool move_weights = false;
  /// Seconds for each byte of weights that a rank holds: sharding a weight is free, so
  /// without a small price it would not matter whether it is sharded.
  double weight_price = 1e-18;
};

/// The choice of a row for every node as a CostNetwork:
///
///   a variable for each node (its row), for each weight (its placement), and for each value that
///   several nodes read (as what it is produced, and one further copy that readers share)
///
///   costs of one: compute; bytes of weights    costs of two: moves
///
/// A value with one reader is a cost of maker and reader. One with several would be paid by each of
/// them if its copies were not variables: queries, keys and values share one gather.
class ChoiceNetwork {
 public:
  ChoiceNetwork(const ProgramView& view, const Pins& pins, const NodeRows& rows,
                const NetworkOptions& options);

  CostNetwork& network() { return network_; }
  const CostNetwork& network() const { return network_; }

  /// The assignment that a solution of the network stands for.
  Assignment assignment(const Solution& solution);

  /// Everything whole, but for what is pinned; perhaps not allowed, but a place to start from.
  Solution whole() const;
  /// All states of each variable.
  std::vector<std::vector<int>> all_states() const;
  /// Those that are as in the solution on all axes but one.
  std::vector<std::vector<int>> states_along(const Solution& solution, int axis) const;

  /// A weight (or other graph input) with its variable; states are placements.
  struct Input {
    program::ValueId id;
    int variable;
    std::vector<Sharding> placements;
    bool is_held = false;  ///< not given by the user: a weight, buffer or constant
  };
  const std::vector<Input>& inputs() const { return inputs_; }

  /// Why no combination is allowed: the first node that cannot use its weights as they are pinned.
  std::string why_impossible();
  /// Which large weight no node can use sharded, and the reason; empty if there is none.
  std::string why_heavy() const;

 private:
  /// What makes a value: the shardings that it has, by state of a variable.
  struct Maker {
    int variable = -1;
    const void* list = nullptr;  // what the shardings depend on, with `result`
    size_t result = 0;
    std::vector<Sharding> produced;
  };
  struct Copies {
    Sharding produced;
    Sharding copy;           // undefined: none
    bool only_copy = false;  // all read the copy
  };
  using States = std::shared_ptr<const std::vector<Copies>>;
  /// All operands of one node that read the value.
  struct NodeReader {
    size_t node;
    std::vector<size_t> operands;
  };

  void add_nodes();
  void add_inputs();
  void add_value(program::ValueId id);
  void add_states(program::ValueId id, const Maker& maker, const std::vector<NodeReader>& readers,
                  const std::vector<Sharding>& outputs);
  States states_of(program::ValueId id, const Maker& maker, const std::vector<NodeReader>& readers,
                   const std::vector<Sharding>& outputs);
  std::vector<Sharding> copies_worth_making(program::ValueId id, const Maker& maker,
                                            const std::vector<NodeReader>& readers,
                                            const std::vector<Sharding>& outputs);
  std::vector<Sharding> pinned_forms(program::ValueId id, const Maker& maker) const;
  Maker maker_of(program::ValueId id) const;
  std::vector<NodeReader> readers_of(program::ValueId id) const;
  std::optional<size_t> reader_of_whole(program::ValueId weight) const;
  Sharding output_sharding(size_t output) const;
  double move(program::ValueId id, const Sharding& from, const Sharding& to);
  double read(program::ValueId id, const Copies& state, const Sharding& needed);
  double read_all(program::ValueId id, const Copies& state, const NodeReader& reader,
                  const NodeRow& row);
  void add_updates(program::ValueId id, const Maker& maker);

  void set_nodes(const Solution& solution, Assignment& out) const;
  void set_inputs(const Solution& solution, Assignment& out) const;
  void set_moves(const Solution& solution, Assignment& out);
  void set_totals(const Solution& solution, Assignment& out) const;

  const ProgramView& view_;
  const Pins& pins_;
  const NodeRows& rows_;
  NetworkOptions options_;
  MoveCosts moves_;
  CostNetwork network_;
  std::vector<int> node_variable_;
  std::vector<std::pair<size_t, size_t>> made_by_;  // by value: node and result
  std::map<uint32_t, size_t> input_of_;             // by value: index into inputs_
  std::vector<Input> inputs_;
  std::map<uint32_t, std::pair<int, States>> states_;  // by value
  std::map<std::vector<const void*>, CostNetwork::Table> tables_;
  std::map<std::vector<const void*>, States> known_states_;
};

}  // namespace tessera::partition
