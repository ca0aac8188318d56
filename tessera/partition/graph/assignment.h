#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/mesh/device_mesh.h"
#include "tessera/program/exported_program.h"
#include "tessera/rules/rule.h"
#include "tessera/sharding/sharding.h"

/// The result of the search and the input of the rewriting passes: how every value of a program is
/// sharded, what every node needs, and what is redistributed between them.
///
///   p_up_weight    S0              parameter, 32x8 of which a rank holds 16x8
///   linear         S1              aten::linear  R, S0, S0 -> S1
///   gelu           S1              aten::gelu    S1 -> S1
///   linear_1       P(sum)          aten::linear  S1, S1 -> P(sum)
///     moved to     R               all_reduce over tp, read by add
///
/// Sizes and symbols. Shardings are of *hint* sizes: a symbol has the value that it had when the
/// program was exported. The symbolic sizes themselves stay in the graph's TensorMeta, by dim, and
/// always mean global sizes. A dim whose size is an expression is sharded only if every value of
/// the expression can be divided evenly (64*s0 over 4), or if the caller asked for that shard; then
/// the symbols must be multiples, which `divisible` lists, and the local size is the expression
/// divided by the ranks. Dims that are numbers may be sharded unevenly: the local size is that of
/// local_shape(sharding, coordinate). Nodes that read sizes (aten::sym_size) take values as they
/// are produced, and their result is a global size. Strides of shardings are row-major: those of
/// values are in the graph.
namespace tessera::partition {

/// One tensor among the arguments of a node, in the order of rules::OpCall::operands: by argument,
/// lists flattened, with the optional ones that are absent.
struct Operand {
  std::optional<program::ValueId> value;  ///< none: the optional tensor was not given
  Sharding needed;                        ///< undefined if there is no value
};

struct NodeAssignment {
  /// Undefined operands and results of nodes that work on no tensors (_operator.mul, ...).
  std::vector<Operand> operands;
  /// The tensors that the node makes, list results flattened; their shardings are in `values`.
  std::vector<program::ValueId> results;
  /// The rule that allows it; nullptr: the op has none, and runs on whole tensors.
  const rules::Rule* rule = nullptr;
  /// What runs in the op's place with these shardings, see rules::Row::kernel: "mask" for look-ups
  /// along a sharded dim.
  std::string kernel;
  /// "S2 | S1 -> P(sum)", for messages.
  std::string row;
  /// Why nothing is sharded, where nothing is: "no rule", "4 for 3 ranks: only equal parts", ...
  std::string why_whole;
  double compute_seconds = 0;
};

/// A value brought from one sharding to another, once, for all nodes that need it so. The steps are
/// those of plan::make_plan(from, to, machine).
struct Redistribution {
  program::ValueId value;
  Sharding from;  ///< as produced, or the `to` of an earlier redistribution of the same value
  Sharding to;
  /// The first node that reads it: an index into Graph::nodes, or their number for an output.
  size_t first_reader = 0;
  double seconds = 0;
  int64_t bytes = 0;  ///< the most that one rank sends
};

/// A symbol of which values must be multiples, because a dim of that size is sharded.
struct Divisible {
  std::string symbol;
  int64_t by = 1;
};

struct Totals {
  double compute_seconds = 0;  ///< by the machine's model, of the busiest rank
  double comm_seconds = 0;
  int64_t comm_bytes = 0;    ///< the most that one rank sends
  int collectives = 0;       ///< steps that communicate
  int64_t weight_bytes = 0;  ///< the most that one rank holds of parameters, buffers, constants
  double lower_bound = 0;    ///< no choice costs less, in seconds; equal to seconds() if exact
  double seconds() const { return compute_seconds + comm_seconds; }
};

struct Assignment {
  DeviceMesh mesh;
  /// By ValueId: the sharding as produced; undefined for what is not a tensor.
  std::vector<Sharding> values;
  /// By index into Graph::nodes.
  std::vector<NodeAssignment> nodes;
  /// By index into Graph::outputs: what the value must be brought to (a mutated buffer to the
  /// buffer's sharding). Undefined for what is not a tensor.
  std::vector<Sharding> outputs;
  /// In order of first readers; all redistributions are here, so an operand's `needed` is the
  /// sharding as produced or one of these.
  std::vector<Redistribution> redistributions;
  std::vector<Divisible> divisible;
  Totals totals;

  const Sharding& of(program::ValueId id) const { return values[id.index]; }
};

/// Inputs of the graph (parameters, buffers, constants, user inputs) are values: their sharding is
/// `values`. The weight of a name ("layers.0.weight"): nothing if there is none.
std::optional<Sharding> sharding_of_weight(const program::ExportedProgram& program,
                                           const Assignment& assignment, std::string_view name);

/// A node's call as rules see it: for rules, rules::LocalArg::value and explanations. Owns what its
/// OpCall refers to.
class NodeCall {
 public:
  /// With the shardings of the values given, by ValueId.
  NodeCall(const program::Graph& graph, const program::Node& node, const DeviceMesh& mesh,
           std::span<const Sharding> values);
  /// As an assignment has it: operands as needed. `mesh` is the assignment's, perhaps seen from a
  /// rank: arguments are localised for that one.
  NodeCall(const program::Graph& graph, size_t node, const Assignment& assignment,
           const DeviceMesh& mesh);
  NodeCall(const NodeCall&) = delete;
  NodeCall& operator=(const NodeCall&) = delete;

  /// "aten::add.Tensor", "aten::mm"; empty for targets that are no operators: "_operator.mul".
  const std::string& op() const { return op_; }
  const rules::OpCall& call() const { return call_; }
  /// One for each of call().operands().
  const std::vector<std::optional<program::ValueId>>& operands() const { return operands_; }
  /// The tensors that the node makes, list results flattened.
  const std::vector<program::ValueId>& results() const { return results_; }

 private:
  std::string op_;
  std::vector<rules::NamedArg> args_;
  std::vector<std::optional<program::ValueId>> operands_;
  std::vector<program::ValueId> results_;
  rules::OpCall call_;
};

/// The sharding of a value seen from the rank of another view of its mesh; undefined stays so.
inline Sharding seen_in(const Sharding& sharding, const DeviceMesh& mesh) {
  return sharding.defined() ? sharding.with_mesh(mesh) : sharding;
}

/// The shape of a tensor with hints for symbols; InvalidArgument with its name if one has none.
std::vector<int64_t> hint_shape(const program::Value& value);

/// The rule of an exported op: the library's, or one of those for ops that stay whole in exported
/// programs and are taken apart before they reach the dispatcher (layer_norm, softmax.int,
/// scaled_dot_product_attention, ...). nullptr: none.
const rules::Rule* rule_of(std::string_view op);

}  // namespace tessera::partition
