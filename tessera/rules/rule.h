#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/rules/op_call.h"

/// A rule lists, for one mesh axis, the legal placements of an op's operands and the resulting
/// placements of its results. Legal means: every rank runs the same op on its local tensors, and
///
///   combine(op(split(x))) == op(x)
///
/// Rows of different axes are independent; choose.h selects one per axis.
namespace tessera::rules {

struct Row {
  std::vector<Placement> operands;  ///< one each, also for undefined ones (R)
  std::vector<Placement> results;   ///< one each; for a list result, one per element

  // Constraints on the rows of other axes, enforced by `choose`.
  int letter = -1;        ///< what is sharded: axes with the same letter are nested
  int64_t size = 0;       ///< of the letter
  bool even = false;      ///< all axes of the letter together must shard it evenly
  bool nonempty = false;  ///< and leave no rank with an empty part
  int64_t multiple = 1;   ///< each part is a multiple of this many elements
  int as_is = -1;  ///< this (ragged) operand must be unchanged on all axes that shard the dim
  /// A handler of this name runs instead of the op, with the communication it needs. Offered only
  /// after `enable_handler(name)`.
  ///   mask   look-ups along a sharded dim: rows of other ranks count as zeros
  ///   norm   vector norms over a sharded dim: powers summed over the ranks, then the root
  ///   moments  variance over a sharded dim: deviations of the parts and of their means
  ///   nll    nll_loss with mean over a sharded batch: losses and weights summed, then divided
  std::string_view handler = {};

  bool operator==(const Row& other) const {
    return operands == other.operands && results == other.results;
  }
};

/// Rows for all axes at once, for rules in which axes depend on each other (views of uneven
/// shards).
struct JointRow {
  std::vector<std::vector<Placement>> operands;  ///< by operand, by axis; empty for undefined ones
  std::vector<std::vector<Placement>> results;
  std::vector<int> order;  ///< the common order; empty: that of the first operand
};

/// An argument that must be rewritten before the op runs on local tensors.
struct LocalArg {
  std::string name;
  /// The new value, computed by the rule from the chosen shardings.
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
  /// The legal rows for `axis` of call.mesh. The all-replicate row is always legal and need not be
  /// listed. Uneven and empty local shards are legal unless the rule leaves the row out.
  std::function<std::vector<Row>(const OpCall& call, int axis)> rows;
  /// Rows that `rows` left out because of sizes or attributes.
  std::function<std::vector<Refusal>(const OpCall& call, int axis)> refused = {};
  /// Instead of `rows`: complete candidates, best first.
  std::function<std::vector<JointRow>(const OpCall& call)> joint = {};
  /// Instead of either: the choice itself. For lists of independent tensors (foreach, optimizers).
  std::function<Choice(const OpCall& call)> decide = {};
  /// Global shapes of the results if the rule knows them; nullptr: from Meta kernels or the local
  /// run. A size of -1: the dim is not sharded, its size comes from the local result. Strides and
  /// dtypes are predictions.
  std::function<std::vector<ResultMeta>(const OpCall& call)> infer = {};
  std::vector<LocalArg> localise = {};
  /// If not empty: the op to run on the local tensors instead. Its arguments are, by name, the
  /// localized ones, else the call's, else the schema's defaults.
  std::string instead = {};
  /// If set: factors for the local results, by result; 1 leaves one unchanged, 0 overwrites it with
  /// zeros (the mean of an empty part is NaN). Makes means of uneven shards correct.
  std::function<std::vector<double>(const OpCall&, std::span<const Sharding> operands)> scale = {};
  int result_count = 1;  ///< -1 for list results
  /// The first operand is written to: it must keep its placement, and so must the result.
  bool in_place = false;
  /// The number of trailing operands that are out= arguments: not read, placed as the results.
  int out_count = 0;
};

/// Announces that a handler for rows with `name` exists; otherwise they are not offered.
void enable_handler(std::string_view name);
bool handler_enabled(std::string_view name);
/// The name with static lifetime; empty if it was not enabled.
std::string_view handler_name(std::string_view name);

/// Optional rows of rules. One flag exists, and it is set by default:
///   sequence   attention without a causal mask may keep the rows of the queries sharded, with all
///              keys and values on every rank (context parallelism without a ring)
/// Set flags identically on every rank.
void set_flag(std::string_view name, bool on);
bool flag_set(std::string_view name);

/// Increases whenever a rule, handler, flag or default machine changes: earlier choices may be
/// outdated.
uint64_t generation();
/// A rule was added: increases generation().
void next_generation();

}  // namespace tessera::rules
