#pragma once

#include <vector>

#include "tessera/cost/machine.h"
#include "tessera/rules/rule.h"

/// The candidate rows per axis that `choose` searches, with estimated costs.
///
/// The estimate prices each operand's move on this axis alone, by its current local bytes. It
/// orders the search; the plan's true cost decides.
namespace tessera::rules {

struct Candidate {
  Row row;
  double seconds = 0;  // estimated
  double work = 1;     // of the busiest rank, where 1 is an equal share
  double memory = 0;   // of operands and results, as fractions of the whole
};

/// Rows that are left out because they are of no use to a single call. A search over many calls
/// needs all of them.
struct CandidateOptions {
  bool replicated_stays = true;  ///< operands that are all replicated on an axis stay so
  bool given_partials = true;    ///< pass partial values only if an operand is partial
};

/// Why rows, one per mesh axis, conflict; empty if they do not.
std::string conflict_of(std::span<const Row* const> rows, std::span<const Sharding> operands,
                        const DeviceMesh& mesh);

class Candidates {
 public:
  Candidates(const Rule& rule, const OpCall& call, CandidateOptions options = {});

  const std::vector<Sharding>& operands() const { return operands_; }
  int axes() const { return static_cast<int>(by_axis_.size()); }
  /// Cheapest first; always contains the all-replicated row.
  const std::vector<Candidate>& of_axis(int axis) const {
    return by_axis_[static_cast<size_t>(axis)];
  }
  const Candidate& at(std::span<const int> picks, int axis) const {
    return of_axis(axis)[static_cast<size_t>(picks[static_cast<size_t>(axis)])];
  }

  /// Why rows that are individually legal conflict; empty if they do not.
  std::string conflict(std::span<const int> picks) const;

  /// What the kernel of a row communicates on an axis: nothing if it has one rank.
  KernelComm comm(int axis, const Row& row) const;
  /// The time of what it combines, by its bytes alone: where operands can stay as they are, a few
  /// short messages are no reason to move them, which would also change the results' placements.
  double kernel_seconds(int axis, const Row& row) const;

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
