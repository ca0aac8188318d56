#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/rules/op_call.h"

/// A rule says, for one mesh axis, which placements of an op's operands are legal and what they
/// make of its results. Legal means: every rank runs the same op on its local tensors, and
///
///   combine(op(split(x))) == op(x)
///
/// Rows are independent from axis to axis; choose.h picks one for each.
namespace tessera::rules {

struct Row {
  std::vector<Placement> operands;  ///< one each, also for undefined ones (R)
  std::vector<Placement> results;   ///< one each; of a list result, one each element

  // What a row asks of the rows that other axes take; `choose` sees to it.
  int letter = -1;        ///< what is cut: axes with the same letter cut it one inside the other
  int64_t size = 0;       ///< of the letter
  bool even = false;      ///< all axes of the letter together must cut it into equal parts
  bool nonempty = false;  ///< and leave no rank without any
  int64_t multiple = 1;   ///< each part has a multiple of so many elements
  int as_is = -1;  ///< this operand (a ragged one) must be as it is on all axes that cut the dim
  /// Not the op itself but a handler of this name does it, with what communication it needs. Only
  /// listed once `enable_handler(name)` was called.
  ///   mask   look-ups along a cut dim: rows that are not here count as zeros
  ///   norm   vector norms over a sharded dim: powers summed over the ranks, then the root
  ///   moments  variance over a sharded dim: deviations of the parts and of their means
  ///   nll    nll_loss of a mean over a sharded batch: losses and weights summed, then divided
  std::string_view handler = {};

  bool operator==(const Row& other) const {
    return operands == other.operands && results == other.results;
  }
};

/// Rows for all axes at once, for rules where axes depend on each other (views of uneven shards).
struct JointRow {
  std::vector<std::vector<Placement>> operands;  ///< by operand, by axis; empty for undefined ones
  std::vector<std::vector<Placement>> results;
  std::vector<int> order;  ///< the common order; empty: that of the first operand
};

/// What of the arguments must be rewritten before the op runs on local tensors.
struct LocalArg {
  std::string name;
  /// The new value, computed from the chosen result shardings by the rule.
  std::function<Arg(const OpCall&, std::span<const Sharding> operands,
                    std::span<const Sharding> results)>
      value;
};

struct Choice;

/// Placements that a rule does not allow for a call, and why: for explanations.
struct Refusal {
  std::vector<Placement> operands;
  std::string why;
};

struct Rule {
  std::string op;
  std::string text;  ///< the notation it came from, or "code: views"
  /// The legal rows for `axis` of call.mesh. The all-replicate row need not be listed; it is always
  /// legal. Uneven and empty local shards are legal unless the rule leaves the row out.
  std::function<std::vector<Row>(const OpCall& call, int axis)> rows;
  /// What `rows` left out because of sizes or attributes.
  std::function<std::vector<Refusal>(const OpCall& call, int axis)> refused = {};
  /// Instead of `rows`: whole candidates, best first.
  std::function<std::vector<JointRow>(const OpCall& call)> joint = {};
  /// Instead of either: the choice itself. For lists of independent tensors (foreach, optimizers).
  std::function<Choice(const OpCall& call)> decide = {};
  /// Global shapes of the results where the rule knows them; nullptr: Meta kernels or the local
  /// run. A size of -1: the dim is whole, take it from the local result. Strides and dtypes are
  /// guesses.
  std::function<std::vector<ResultMeta>(const OpCall& call)> infer = {};
  std::vector<LocalArg> localise = {};
  /// If not empty: the op to run on the local tensors instead. Its arguments are, by name, the
  /// localised ones, else the call's, else the schema's defaults.
  std::string instead = {};
  /// If set: factors for the local results, by result; 1 leaves one alone, 0 means zeros whatever
  /// the op gave (the mean of nothing is NaN). This is how means of uneven shards are right.
  std::function<std::vector<double>(const OpCall&, std::span<const Sharding> operands)> scale = {};
  int result_count = 1;  ///< of list results: -1
  /// The first operand is written: it must keep its placement, and so must the result.
  bool in_place = false;
  /// So many operands at the end are out= arguments: not read, placed as the results are.
  int out_count = 0;
};

/// Says that a handler for rows marked with `name` exists; without it they are not offered.
void enable_handler(std::string_view name);
bool handler_enabled(std::string_view name);
/// The name for good; empty if it was not enabled.
std::string_view handler_name(std::string_view name);

/// Rows that a rule offers on request. One flag exists, and it is set:
///   sequence   attention without a causal mask may keep the rows of the queries sharded, with all
///              keys and values on every rank (context parallelism without a ring)
/// Set flags alike on every rank.
void set_flag(std::string_view name, bool on);
bool flag_set(std::string_view name);

/// Grows whenever a rule, handler, flag or default machine changes: choices made before may be
/// others now.
uint64_t generation();
/// A rule was added: generation() grows.
void next_generation();

}  // namespace tessera::rules
