#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/base/api.h"
#include "tessera/rules/op_call.h"

/// A rule lists, for one mesh axis, the legal placements of an op's operands and the resulting
/// placements of its results. Legal means: every rank runs the same op on its local tensors, and
///
///   combine(op(split(x))) == op(x)
///
/// Rows of different axes are independent; rules/choice/choose.h selects one per axis.
///
/// A row may need a kernel of its own, which runs on the local tensors in place of the op and may
/// communicate: the running sum of a sharded dim adds the totals of the preceding parts. The row
/// names the kernel and declares what it communicates, so that whatever reads rows (choice,
/// explain, the policy on implicit communication, the program partitioner) knows it:
///
///   aten::cumsum 8x4096, dim=1, tp=4     S0 -> S0
///                                        S1 -> S1   by cumsum, which combines: 96 B sent
namespace tessera::rules {

/// What the kernel of a row communicates.
enum class KernelComm : uint8_t {
  none,      ///< nothing
  exchange,  ///< parts of operands with the ranks that hold the neighbouring ones (halos). Belongs
             ///< to the op like its arithmetic: no policy refuses it, and no row is chosen for it
  combine,   ///< the ranks' results: implicit communication, priced and refused like a move
};

struct TESSERA_API Row {
  std::vector<Placement> operands;  ///< one each, also for undefined ones (R)
  std::vector<Placement> results;   ///< one each; for a list result, one per element

  // Constraints on the rows of other axes, enforced by `choose`.
  int letter = -1;        ///< what is sharded: axes with the same letter are nested
  int64_t size = 0;       ///< of the letter
  bool even = false;      ///< all axes of the letter together must shard it evenly
  bool nonempty = false;  ///< and leave no rank with an empty part
  int64_t multiple = 1;   ///< each part is a multiple of this many elements
  int as_is = -1;  ///< this (ragged) operand must be unchanged on all axes that shard the dim
  /// The kernel that runs on the local tensors; empty: the op itself. Offered only after
  /// `enable_kernel(name)`. Rows of several axes may name the same kernel, never two.
  std::string_view kernel = {};
  KernelComm comm = KernelComm::none;
  int64_t sent = 0;  ///< bytes that a rank sends in the kernel, for this axis

  bool operator==(const Row& other) const {
    return operands == other.operands && results == other.results;
  }
};

/// The rows that a kernel makes possible for a call on one axis. They need not name the kernel.
using KernelRows = std::function<std::vector<Row>(const OpCall& call, int axis)>;

/// Rows for all axes at once, for rules in which axes depend on each other (views of uneven
/// shards).
struct TESSERA_API JointRow {
  std::vector<std::vector<Placement>> operands;  ///< by operand, by axis; empty for undefined ones
  std::vector<std::vector<Placement>> results;
  std::vector<int> order;  ///< the common order; empty: that of the first operand
};

/// An argument that must be rewritten before the op runs on local tensors.
struct TESSERA_API LocalArg {
  std::string name;
  /// The new value, computed by the rule from the chosen shardings.
  std::function<Arg(const OpCall&, std::span<const Sharding> operands,
                    std::span<const Sharding> results)>
      value;
};

struct Choice;

/// Placements that a rule does not allow for a call, and why: for explanations.
struct TESSERA_API Refusal {
  std::vector<Placement> operands;
  std::string why;
};

struct TESSERA_API Rule {
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

/// A kernel that exists; the rows that name it are offered from now on.
struct TESSERA_API EnabledKernel {
  std::string_view name;  ///< with static lifetime
  KernelComm comm = KernelComm::combine;
  /// The rows of ops whose rule has the clause `kernel name` without letters; with letters, the
  /// rule itself lists them.
  KernelRows rows = {};
};
TESSERA_API void enable_kernel(std::string_view name, KernelComm comm = KernelComm::combine,
                               KernelRows rows = {});
/// nullptr if it was not enabled. Never invalidated.
TESSERA_API const EnabledKernel* find_kernel(std::string_view name);

/// Optional rows of rules. One flag exists, and it is set by default:
///   sequence   attention without a causal mask may keep the rows of the queries sharded, with all
///              keys and values on every rank (context parallelism without a ring)
/// Set flags identically on every rank.
TESSERA_API void set_flag(std::string_view name, bool on);
TESSERA_API bool flag_set(std::string_view name);

/// Increases whenever a rule, kernel, flag or default machine changes: earlier choices may be
/// outdated.
TESSERA_API uint64_t generation();
/// A rule was added: increases generation().
TESSERA_API void next_generation();

}  // namespace tessera::rules
