#include "tessera/partition/explain_program.h"

#include <algorithm>
#include <cstdio>
#include <map>
#include <nlohmann/json.hpp>

#include "tessera/base/text.h"
#include "tessera/mesh/axes_text.h"
#include "tessera/partition/graph/module_paths.h"
#include "tessera/partition/search/compute_model.h"
#include "tessera/plan/plan.h"

namespace tessera::partition {
namespace {

using program::ValueId;

std::string seconds_text(double seconds) {
  if (seconds == 0) return "";
  std::array<char, 32> text{};
  const bool micro = seconds < 1e-3;
  std::snprintf(text.data(), text.size(), micro ? "%.3g us" : "%.3g ms",
                seconds * (micro ? 1e6 : 1e3));
  return text.data();
}

class Explainer {
 public:
  Explainer(const program::ExportedProgram& program, const Assignment& assignment,
            const cost::Machine& machine)
      : program_(program), assignment_(assignment) {
    for (const Redistribution& move : assignment.redistributions) {
      const auto plan = plan::make_plan(move.from, move.to, machine);
      for (const plan::Step& step : plan.steps) {
        moves_[move.first_reader].push_back(
            {program.graph.value(move.value).name, std::string(plan::move_name(step.move)),
             axes_text(step.from.mesh(), step.axes), step.from.placements_text(),
             step.to.placements_text(), step.bytes, step.seconds, !plan::is_local(step.move)});
      }
    }
  }

  std::vector<ExplainedWeight> weights() const {
    std::vector<ExplainedWeight> out;
    for (const auto& input : program_.signature.inputs) {
      if (input.target.empty() || !input.arg || input.arg->kind != program::ArgKind::tensor)
        continue;
      const auto id = input.arg->as<ValueId>();
      const Sharding& sharding = assignment_.of(id);
      if (!sharding.defined()) continue;
      out.push_back({input.target, program_.graph.value(id).tensor->to_text(),
                     sharding.placements_text(), static_cast<int64_t>(local_bytes(sharding))});
    }
    return out;
  }

  ExplainedNode node(size_t index) const {
    ExplainedNode out;
    out.before = moved_for(index);
    if (index == program_.graph.nodes.size()) return out;
    const program::Node& node = program_.graph.nodes[index];
    const NodeAssignment& chosen = assignment_.nodes[index];
    out.name = node.name.value_or(node.target);
    const auto [op, overload] = node.op_name();
    out.op = op.empty() ? node.target
                        : op + (overload.empty() || overload == "default" ? "" : "." + overload);
    out.module = module_of(node);
    out.row = chosen.row;
    out.why_whole = chosen.why_whole;
    out.compute_seconds = chosen.compute_seconds;
    for (const ValueId id : chosen.results) {
      out.result +=
          join_text(out.result.empty() ? "" : "; ", program_.graph.value(id).tensor->to_text(), " ",
                    assignment_.of(id).placements_text());
    }
    return out;
  }

 private:
  std::vector<ExplainedStep> moved_for(size_t index) const {
    const auto found = moves_.find(index);
    return found == moves_.end() ? std::vector<ExplainedStep>() : found->second;
  }

  const program::ExportedProgram& program_;
  const Assignment& assignment_;
  std::map<size_t, std::vector<ExplainedStep>> moves_;  // by first reader
};

std::string step_text(const ExplainedStep& step) {
  return join_text(step.value, ": ", step.move, " over ", step.axes, "  ", step.from, " -> ",
                   step.to);
}

std::string cost_text(const ExplainedStep& step) {
  if (!step.communicates) return "no message";
  return join_text(bytes_text(step.bytes), ", ", seconds_text(step.seconds));
}

}  // namespace

ProgramExplanation explain_program(const program::ExportedProgram& program,
                                   const Assignment& assignment, const std::string& source,
                                   const cost::Machine& machine) {
  ProgramExplanation out;
  const Explainer explainer(program, assignment, machine);
  out.source = source;
  out.mesh = assignment.mesh.to_text();
  out.weights = explainer.weights();
  for (size_t i = 0; i <= program.graph.nodes.size(); ++i) out.nodes.push_back(explainer.node(i));
  out.totals = assignment.totals;
  for (const auto& [symbol, by] : assignment.divisible) {
    out.must_divide.push_back(join_text(symbol, " must be a multiple of ", by));
  }
  return out;
}

std::string ProgramExplanation::collectives_text() const {
  std::map<std::string, int> counts;
  for (const auto& node : nodes) {
    for (const auto& step : node.before) {
      if (step.communicates) ++counts[step.move];
    }
  }
  std::string out;
  for (const auto& [move, n] : counts) out += join_text(out.empty() ? "" : ", ", n, " ", move);
  return out.empty() ? "none" : out;
}

std::string ProgramExplanation::to_text() const {
  std::vector<std::vector<std::string>> rows = {{"node", "op", "runs as", "result", "compute"}};
  for (const auto& node : nodes) {
    for (const auto& step : node.before) rows.push_back({"  " + step_text(step), cost_text(step)});
    if (node.name.empty()) continue;
    rows.push_back(
        {node.name, node.op,
         node.row.empty() && !node.why_whole.empty() ? "whole: " + node.why_whole : node.row,
         node.result, seconds_text(node.compute_seconds)});
  }
  // A move is one long cell: it must not widen the column of names.
  std::string text;
  std::vector<std::vector<std::string>> block;
  std::vector<std::vector<std::string>> table;
  for (const auto& row : rows) {
    if (row.size() > 2) table.push_back(row);
  }
  const std::string lines = table_text(table);
  size_t at = 0;
  for (const auto& row : rows) {
    if (row.size() > 2) {
      const size_t end = lines.find('\n', at);
      text += lines.substr(at, end - at) + "\n";
      at = end + 1;
    } else {
      text += row[0] + "   " + row[1] + "\n";
    }
  }
  text +=
      join_text("\n", source, " on ", mesh, ": ", collectives_text(), "; a rank sends ",
                bytes_text(totals.comm_bytes), " and holds ", bytes_text(totals.weight_bytes),
                " of weights\ncompute ", seconds_text(totals.compute_seconds), ", communication ",
                totals.comm_seconds > 0 ? seconds_text(totals.comm_seconds) : "none",
                " by the machine's model\n");
  for (const auto& line : must_divide) text += line + "\n";
  return text;
}

std::string ProgramExplanation::to_json() const {
  using Json = nlohmann::ordered_json;
  Json all_weights = Json::array();
  for (const auto& w : weights) {
    all_weights.push_back({{"name", w.name},
                           {"type", w.type},
                           {"placements", w.placements},
                           {"local_bytes", w.local_bytes}});
  }
  Json all_nodes = Json::array();
  for (const auto& node : nodes) {
    Json moves = Json::array();
    for (const auto& step : node.before) {
      moves.push_back({{"value", step.value},
                       {"move", step.move},
                       {"axes", step.axes},
                       {"from", step.from},
                       {"to", step.to},
                       {"bytes_sent", step.bytes},
                       {"seconds", step.seconds},
                       {"communicates", step.communicates}});
    }
    all_nodes.push_back({{"name", node.name},
                         {"op", node.op},
                         {"module", node.module},
                         {"row", node.row},
                         {"result", node.result},
                         {"why_whole", node.why_whole},
                         {"compute_seconds", node.compute_seconds},
                         {"moves", std::move(moves)}});
  }
  const Json json = {{"source", source},
                     {"mesh", mesh},
                     {"collectives", totals.collectives},
                     {"bytes_sent", totals.comm_bytes},
                     {"weight_bytes", totals.weight_bytes},
                     {"compute_seconds", totals.compute_seconds},
                     {"comm_seconds", totals.comm_seconds},
                     {"lower_bound_seconds", totals.lower_bound},
                     {"must_divide", must_divide},
                     {"weights", std::move(all_weights)},
                     {"nodes", std::move(all_nodes)}};
  return json.dump(2) + "\n";
}

}  // namespace tessera::partition
