#include "tessera/partition/rewrite/rewrite.h"

#include <algorithm>

#include "tessera/base/errors.h"
#include "tessera/partition/graph/sizes.h"
#include "tessera/partition/rewrite/insert_communication.h"
#include "tessera/partition/rewrite/local_symbols.h"
#include "tessera/partition/rewrite/localise.h"
#include "tessera/partition/rewrite/relax_views.h"
#include "tessera/program/verify.h"

namespace tessera::partition {
namespace {

using program::Argument;
using program::ExportedProgram;
using program::Graph;
using program::Node;
using program::ValueId;

/// Applies `change` to every tensor that the arguments of a node refer to, in order.
template <typename Change>
struct TensorWalk {
  const Graph& graph;
  const Change& change;

  void operator()(ValueId& id) const {
    if (graph.value(id).kind == program::ValueKind::tensor) change(id);
  }
  void operator()(std::optional<ValueId>& id) const {
    if (id) (*this)(*id);
  }
  void operator()(Argument& arg) const { std::visit(*this, arg.data); }
  template <typename T>
  void operator()(std::vector<T>& list) const {
    if constexpr (!std::is_same_v<T, bool>) {
      for (T& item : list) (*this)(item);
    }
  }
  void operator()(std::pair<std::string, Argument>& member) const { (*this)(member.second); }
  template <typename T>
  void operator()(T&) const {}  // refers to no tensor
};

template <typename Change>
void each_tensor(const Graph& graph, Argument& argument, const Change& change) {
  std::visit(TensorWalk<Change>{graph, change}, argument.data);
}

/// The tensors of a node in the shardings that it needs.
Node with_local_operands(const Graph& global, const NodeAssignment& chosen,
                         const Communication& communication, const Node& node) {
  Node out = node;
  std::vector<const Operand*> given;
  for (const Operand& operand : chosen.operands) {
    if (operand.value) given.push_back(&operand);
  }
  size_t next = 0;
  for (auto& input : out.inputs) {
    each_tensor(global, input.arg, [&](ValueId& id) {
      if (next >= given.size()) return;  // of a node whose operands stay as they are
      ensure(*given[next]->value == id, "the operands of an assignment are not those of its node");
      id = communication.local(id, given[next++]->needed);
    });
  }
  return out;
}

void check_written(const NodeAssignment& chosen, const Assignment& assignment, const Node& node) {
  if (!is_in_place(node) || chosen.operands.empty() || !chosen.operands[0].value) return;
  const Sharding& produced = assignment.of(*chosen.operands[0].value);
  if (chosen.operands[0].needed == produced || !produced.defined()) return;
  throw NotSupported(join_text(node.name.value_or(node.target), " (", node.target,
                               ") writes to a tensor that is ", produced, " and must be ",
                               chosen.operands[0].needed,
                               " for it: export the program with run_decompositions()"));
}

void localise_values(Graph& graph, const Assignment& assignment, const DeviceMesh& mesh) {
  for (size_t i = 0; i < assignment.values.size(); ++i) {
    const Sharding sharding = seen_in(assignment.values[i], mesh);
    if (!sharding.defined() || !graph.values[i].tensor) continue;
    graph.values[i].tensor = local_meta(*graph.values[i].tensor, sharding);
  }
}

void rewrite_outputs(ExportedProgram& out, const Assignment& assignment,
                     const Communication& communication) {
  for (size_t i = 0; i < out.graph.outputs.size(); ++i) {
    const Sharding& needed = assignment.outputs[i];
    if (!needed.defined()) continue;
    const auto change = [&](ValueId& id) { id = communication.local(id, needed); };
    each_tensor(out.graph, out.graph.outputs[i], change);
    auto& spec = out.signature.outputs[i].arg;
    if (spec) spec->data = out.graph.outputs[i].data;
  }
}

void localise_payloads(ExportedProgram& out, const ExportedProgram& program,
                       const Assignment& assignment, const DeviceMesh& mesh) {
  for (auto* list : {&out.weights, &out.constants}) {
    for (auto& payload : *list) {
      const auto sharding = sharding_of_weight(program, assignment, payload.name);
      if (sharding && payload.meta && !payload.use_pickle) {
        payload.meta = local_meta(*payload.meta, seen_in(*sharding, mesh));
      }
    }
  }
}

}  // namespace

ExportedProgram program_of_rank(const ExportedProgram& program, const Assignment& assignment,
                                int rank, const RewriteOptions& options) {
  const Graph& global = program.graph;
  ensure(assignment.nodes.size() == global.nodes.size() &&
             assignment.values.size() == global.values.size(),
         "an assignment of another program");
  const DeviceMesh mesh = assignment.mesh.with_own_rank(rank);
  ExportedProgram out = program;
  out.graph.nodes.clear();
  localise_values(out.graph, assignment, mesh);
  Emitter emit(out.graph);
  check_divisible(emit, program, assignment);
  Communication communication(emit, global, assignment, mesh, options.machine);
  ViewRelaxer relaxer(global);
  for (size_t i = 0; i < global.nodes.size(); ++i) {
    const Node& node = global.nodes[i];
    const NodeAssignment& chosen = assignment.nodes[i];
    emit.belongs_to(node);
    check_written(chosen, assignment, node);
    communication.before_node(i);
    Node local = with_local_operands(global, chosen, communication, node);
    relaxer.relax(global, node, local, chosen, assignment);
    emit_local_node(emit, {global, i, assignment, mesh}, std::move(local));
  }
  communication.before_node(global.nodes.size());
  rewrite_outputs(out, assignment, communication);
  localise_payloads(out, program, assignment, mesh);
  localise_symbols(out, program, assignment, mesh);
  program::verify(out, join_text("the program of rank ", rank));
  return out;
}

}  // namespace tessera::partition
