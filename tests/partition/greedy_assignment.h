#pragma once

#include <map>
#include <string>

#include "tessera/partition/graph/assignment.h"
#include "tessera/plan/plan.h"
#include "tessera/rules/choice/choose.h"
#include "tessera/rules/registry/registry.h"

/// An assignment for tests of the rewriting half: weights as given, then each node by itself takes
/// what rules::choose says. It knows no total cost and no plan; partition/propagate is for that.
namespace tessera::partition::test {

/// By the name of a weight or user input, "S0" or "R,S1"; the others are replicated.
using Marks = std::map<std::string, std::string>;

inline Assignment greedy_assignment(const program::ExportedProgram& program, const DeviceMesh& mesh,
                                    const Marks& marks) {
  using program::ValueId;
  Assignment out;
  out.mesh = mesh;
  const auto& graph = program.graph;
  const auto replicated = [&](ValueId id) {
    const auto& value = graph.value(id);
    return Sharding(mesh, std::vector<Placement>(static_cast<size_t>(mesh.ndim())),
                    hint_shape(value), {.dtype = value.tensor->dtype});
  };
  for (uint32_t i = 0; i < graph.values.size(); ++i) {
    out.values.push_back(graph.values[i].tensor ? replicated({i}) : Sharding());
  }
  for (const auto& input : program.signature.inputs) {
    if (!input.arg || input.arg->kind != program::ArgKind::tensor) continue;
    const auto id = input.arg->as<ValueId>();
    const auto mark = marks.find(input.target.empty() ? graph.value(id).name : input.target);
    if (mark == marks.end()) continue;
    out.values[id.index] = out.values[id.index].with_placements(parse_placements(mark->second));
  }
  const auto move = [&](ValueId id, const Sharding& to, size_t reader) {
    if (plan::cached_plan(out.of(id), to)->steps.empty() && out.of(id) == to) return;
    for (const auto& known : out.redistributions) {
      if (known.value == id && known.to == to) return;
    }
    out.redistributions.push_back({id, out.of(id), to, reader, 0, 0});
  };
  for (size_t i = 0; i < graph.nodes.size(); ++i) {
    NodeAssignment chosen;
    const NodeCall call(graph, graph.nodes[i], mesh, out.values);
    chosen.results = call.results();
    const auto given = call.call().operands();
    chosen.rule = rules::find_rule(call.op());
    rules::Choice choice;
    if (chosen.rule != nullptr) choice = rules::choose(*chosen.rule, call.call());
    const bool reads_sizes = call.op().find("sym_size") != std::string::npos;
    for (size_t k = 0; k < given.size(); ++k) {
      Operand operand{call.operands()[k], given[k]};
      if (operand.value && chosen.rule != nullptr && choice.operands[k].defined()) {
        operand.needed = choice.operands[k];
      } else if (operand.value && !reads_sizes) {
        operand.needed = given[k].replicated();
      }
      if (operand.value) move(*operand.value, operand.needed, i);
      chosen.operands.push_back(std::move(operand));
    }
    for (size_t r = 0; r < chosen.results.size() && chosen.rule != nullptr; ++r) {
      Sharding& result = out.values[chosen.results[r].index];
      if (r < choice.results.size())
        result = result.with_placements(choice.results[r], choice.order);
    }
    chosen.kernel = choice.kernel;
    out.nodes.push_back(std::move(chosen));
  }
  for (size_t i = 0; i < graph.outputs.size(); ++i) {
    out.outputs.emplace_back();
    if (graph.outputs[i].kind != program::ArgKind::tensor) continue;
    const auto id = graph.outputs[i].as<ValueId>();
    out.outputs.back() = out.of(id).replicated();
    const auto& spec = program.signature.outputs[i];
    if (spec.kind == program::OutputKind::buffer_mutation) {
      out.outputs.back() = *sharding_of_weight(program, out, spec.target);
    }
    move(id, out.outputs.back(), graph.nodes.size());
  }
  return out;
}

}  // namespace tessera::partition::test
