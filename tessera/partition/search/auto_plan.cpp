#include "tessera/partition/search/auto_plan.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <map>

#include "tessera/base/text.h"

namespace tessera::partition {
namespace {

using program::ValueId;

/// "layers.3.mlp.up.weight": "layers.*.mlp.up.weight".
std::string role_of(std::string_view name) {
  std::string out;
  for (size_t i = 0; i < name.size();) {
    const size_t end = std::min(name.find('.', i), name.size());
    const std::string_view part = name.substr(i, end - i);
    const bool number =
        !part.empty() && std::ranges::all_of(part, [](char c) { return c >= '0' && c <= '9'; });
    if (!out.empty()) out += '.';
    out += number ? "*" : part;
    i = end + 1;
  }
  return out;
}

struct Role {
  std::string name;
  std::vector<const ChoiceNetwork::Input*> inputs;
  double bytes = 0;
};

std::vector<Role> roles_of(const ProgramView& view, const ChoiceNetwork& choices) {
  std::map<uint32_t, std::string> name_of;
  for (const auto& input : view.program().signature.inputs) {
    if (input.arg && input.arg->kind == program::ArgKind::tensor && !input.target.empty())
      name_of[input.arg->as<ValueId>().index] = input.target;
  }
  std::vector<Role> out;
  for (const auto& input : choices.inputs()) {
    const auto name = name_of.find(input.id.index);
    const bool may_differ = input.is_held && input.placements.size() > 1;
    if (!may_differ || name == name_of.end() || view.readers(input.id).empty()) continue;
    const std::string role = role_of(name->second);
    auto known = std::ranges::find(out, role, &Role::name);
    if (known == out.end()) known = out.insert(out.end(), {role, {}, 0});
    known->inputs.push_back(&input);
    known->bytes +=
        static_cast<double>(input.placements[0].numel() * dtype_bytes(input.placements[0].dtype()));
  }
  std::ranges::stable_sort(out, std::greater<>(), &Role::bytes);
  return out;
}

const Sharding& placed(const ChoiceNetwork::Input& input, const Solution& solution) {
  const int state = solution.states[static_cast<size_t>(input.variable)];
  return input.placements[static_cast<size_t>(state)];
}

/// The best solution that places all weights of a role otherwise.
Solution without(PlanSearch& search, const ChoiceNetwork& choices, const CostNetwork& network,
                 const Solution& chosen, const Role& role) {
  auto keep = choices.all_states();
  for (const auto* input : role.inputs) {
    const auto v = static_cast<size_t>(input->variable);
    std::erase(keep[v], chosen.states[v]);
  }
  return search.run(network, keep);
}

std::string time_text(double seconds) {
  char text[32];
  if (seconds < 1e-3) {
    std::snprintf(text, sizeof text, "%.3g us", seconds * 1e6);
  } else {
    std::snprintf(text, sizeof text, "%.4g ms", seconds * 1e3);
  }
  return text;
}

std::string totals_text(const Totals& totals) {
  return join_text(time_text(totals.seconds()), " (", time_text(totals.compute_seconds),
                   " compute, ", time_text(totals.comm_seconds), " communication in ",
                   totals.collectives, " collectives), ", bytes_text(totals.weight_bytes),
                   " of weights a rank");
}

void add_reasons(const ProgramView& view, ChoiceNetwork& choices, const Limited& found,
                 const AutoOptions& options, AutoPlan& out) {
  const CostNetwork network = found.price > 0 ? priced(choices, found.price) : choices.network();
  const double cost = network.cost_of(found.solution.states);
  auto roles = roles_of(view, choices);
  roles.resize(std::min(roles.size(), options.reasons));
  double least = std::numeric_limits<double>::infinity();
  PlanSearch search(choices, options.choose.search);
  for (const Role& role : roles) {
    const Solution other = without(search, choices, network, found.solution, role);
    AutoPlan::Reason reason{role.name, placed(*role.inputs[0], found.solution).placements_text(),
                            "none", other.cost - cost};
    if (std::isfinite(other.cost)) {
      reason.otherwise = placed(*role.inputs[0], other).placements_text();
      if (reason.seconds < least) {
        least = reason.seconds;
        out.next_best = choices.assignment(other).totals;
        out.next_best_differs = role.name + " as " + reason.otherwise;
      }
    }
    out.reasons.push_back(std::move(reason));
  }
}

}  // namespace

double AutoPlan::gap() const {
  const Totals& totals = assignment.totals;
  constexpr double kRounding = 1e-9;
  const double gap = totals.seconds() > 0 ? 1 - totals.lower_bound / totals.seconds() : 0;
  return gap > kRounding ? gap : 0;
}

AutoPlan auto_plan(const program::ExportedProgram& program, const DeviceMesh& mesh, Plan given,
                   const AutoOptions& options) {
  given.rest_auto = true;
  ProgramView view(program, mesh);
  const Pins pins = mark(view, given);
  const NetworkOptions network = network_options(mesh, options.choose);
  const NodeRows rows(view, pins, network.compute);
  ChoiceNetwork choices(view, pins, rows, network);
  const Limited found = search_plan(choices, options.choose);
  AutoPlan out;
  out.assignment = choices.assignment(found.solution);
  out.plan = plan_of(program, out.assignment);
  out.plan.values = given.values;
  for (const auto& module : given.modules) {
    if (module.second == Style::sequence) out.plan.modules.push_back(module);
  }
  const Solution whole = choices.whole();
  if (std::isfinite(whole.cost)) out.unsharded = choices.assignment(whole).totals;
  out.weight_limit = options.choose.weight_limit;
  add_reasons(view, choices, found, options, out);
  return out;
}

std::string AutoPlan::to_text() const {
  std::vector<std::vector<std::string>> rows = {{"weights", "placed", "otherwise", "costs more"}};
  for (const Reason& reason : reasons) {
    rows.push_back({reason.weights, reason.placed, reason.otherwise,
                    std::isfinite(reason.seconds) ? time_text(reason.seconds) : "not possible"});
  }
  const auto line = [&](const std::string& name, const Totals& totals) {
    const bool above = weight_limit && totals.weight_bytes > *weight_limit;
    return name + totals_text(totals) + (above ? ", above the limit\n" : "\n");
  };
  std::string out = table_text(rows) + line("chosen: ", assignment.totals);
  if (!next_best_differs.empty()) out += line("next best: " + next_best_differs + ", ", next_best);
  if (unsharded.seconds() > 0) out += line("nothing sharded: ", unsharded);
  if (gap() <= 0) return out + "no plan costs less\n";
  char text[64];
  std::snprintf(text, sizeof text, "at most %.2g %% above the optimum\n", gap() * 100);
  return out + text;
}

}  // namespace tessera::partition
