#pragma once

#include <vector>

#include "tessera/cost/machine.h"
#include "tessera/rules/rule.h"

/// What `choose` has to choose from: for each axis the rows, with a guess at what they cost.
///
/// The guess prices each operand's move on this axis alone, by its present local bytes. It orders
/// the search; the plan's true cost decides.
namespace tessera::rules {

struct Candidate {
  Row row;
  double seconds = 0;  // guessed
  double work = 1;     // of the busiest rank, where 1 is an equal share
  double memory = 0;   // of operands and results, as shares of the whole
};

/// What is left out because a single call, seen alone, has no use for it. A search over many calls
/// wants all of it.
struct CandidateOptions {
  bool replicated_stays = true;  ///< operands that are all replicated on an axis stay so
  bool given_partials = true;    ///< rows that pass a partial value on only if an operand is one
};

/// Why rows, one for each axis of the mesh, are not legal together; empty if they are.
std::string conflict_of(std::span<const Row* const> rows, std::span<const Sharding> operands,
                        const DeviceMesh& mesh);

class Candidates {
 public:
  Candidates(const Rule& rule, const OpCall& call, CandidateOptions options = {});

  const std::vector<Sharding>& operands() const { return operands_; }
  int axes() const { return static_cast<int>(by_axis_.size()); }
  /// Cheapest first; always holds the row of all replicated.
  const std::vector<Candidate>& of_axis(int axis) const {
    return by_axis_[static_cast<size_t>(axis)];
  }
  const Candidate& at(std::span<const int> picks, int axis) const {
    return of_axis(axis)[static_cast<size_t>(picks[static_cast<size_t>(axis)])];
  }

  /// Why rows that are legal one by one are not legal together; empty if they are.
  std::string conflict(std::span<const int> picks) const;

 private:
  void add_axis(int axis);
  double guess(const Row& row, int axis) const;
  double move_seconds(size_t operand, int axis, const Placement& from, const Placement& to) const;

  const Rule& rule_;
  const OpCall& call_;
  CandidateOptions options_;
  std::vector<Sharding> operands_;
  std::vector<double> local_bytes_;
  cost::Machine machine_;
  std::vector<cost::Link> links_;
  std::vector<std::vector<Candidate>> by_axis_;
};

}  // namespace tessera::rules
