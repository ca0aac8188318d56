#include <algorithm>

#include "tessera/base/errors.h"
#include "tessera/partition/search/choice_network.h"
#include "tessera/partition/search/merge_moves.h"

namespace tessera::partition {
namespace {

using program::ArgKind;
using program::ValueId;

std::string row_text(const NodeRow& row) {
  std::string out;
  for (const auto& s : row.operands)
    out += (out.empty() ? "" : " | ") + (s.defined() ? s.placements_text() : std::string("-"));
  out += out.empty() ? "->" : " ->";
  for (const auto& s : row.results) out += " " + s.placements_text();
  return out;
}

}  // namespace

void ChoiceNetwork::set_inputs(const Solution& solution, Assignment& out) const {
  for (const Input& input : inputs_) {
    out.values[input.id.index] =
        input.placements[static_cast<size_t>(solution.states[static_cast<size_t>(input.variable)])];
  }
  for (const auto& argument : view_.graph().inputs) {
    if (argument.kind != ArgKind::tensor) continue;
    const auto id = argument.as<ValueId>();
    out.values[id.index] = out.values[view_.tied(id).index];
  }
}

void ChoiceNetwork::set_nodes(const Solution& solution, Assignment& out) const {
  for (size_t n = 0; n < view_.nodes(); ++n) {
    const NodeCall& call = view_.call(n);
    const NodeRow& row = (*rows_.of(
        n))[static_cast<size_t>(solution.states[static_cast<size_t>(node_variable_[n])])];
    NodeAssignment node;
    node.results = call.results();
    node.rule = view_.rule(n);
    node.kernel = row.kernel;
    node.compute_seconds = row.compute_seconds;
    for (size_t o = 0; o < call.operands().size(); ++o) {
      const auto& id = call.operands()[o];
      // What reads sizes only takes the value as it is; by now the value's maker has been set.
      const bool as_is = id && view_.reads_metadata_only(n);
      node.operands.push_back({id, as_is ? out.values[id->index] : row.operands[o]});
    }
    node.row = row_text(row);
    bool any_shard = !row.kernel.empty();
    for (const auto& s : row.operands) any_shard |= s.defined() && !s.is_replicated();
    if (!any_shard && !call.results().empty()) node.why_whole = rows_.axis(0).why_whole(n);
    for (size_t r = 0; r < row.results.size(); ++r)
      out.values[call.results()[r].index] = row.results[r];
    out.nodes.push_back(std::move(node));
  }
}

void ChoiceNetwork::set_moves(const Solution& solution, Assignment& out) {
  for (uint32_t v = 0; v < out.values.size(); ++v) {
    const ValueId id{v};
    if (!out.values[v].defined() || view_.readers(id).empty()) continue;
    Copies state{out.values[v], {}};
    if (const auto found = states_.find(v); found != states_.end()) {
      const auto& [variable, states] = found->second;
      state = (*states)[static_cast<size_t>(solution.states[static_cast<size_t>(variable)])];
    }
    // All read what is pinned, or what is made of it.
    const bool pinned = state.only_copy && state.copy != out.values[v];
    const Sharding& base = pinned ? state.copy : out.values[v];
    std::vector<NeededForm> needed;
    size_t first = view_.nodes();
    for (const auto& reader : view_.readers(id)) {
      const bool is_output = reader.node == view_.nodes();
      const Sharding& form = is_output ? out.outputs[reader.operand]
                                       : out.nodes[reader.node].operands[reader.operand].needed;
      first = std::min(first, reader.node);
      if (form == base) continue;
      const auto known = std::ranges::find(needed, form, &NeededForm::sharding);
      if (known == needed.end()) {
        needed.push_back({form, reader.node});
      } else {
        known->first_reader = std::min(known->first_reader, reader.node);
      }
    }
    if (pinned) {
      const MoveCost& cost = moves_(out.values[v], base);
      out.redistributions.push_back({id, out.values[v], base, first, cost.seconds, cost.bytes});
    }
    const auto made = merge_moves(id, base, std::move(needed), state.copy, moves_);
    out.redistributions.insert(out.redistributions.end(), made.begin(), made.end());
  }
  std::ranges::stable_sort(out.redistributions, {}, &Redistribution::first_reader);
}

void ChoiceNetwork::set_totals(const Solution& solution, Assignment& out) const {
  Totals& totals = out.totals;
  for (const auto& node : out.nodes) totals.compute_seconds += node.compute_seconds;
  for (const auto& moved : out.redistributions) {
    totals.comm_seconds += moved.seconds;
    totals.comm_bytes += moved.bytes;
    const plan::Plan plan = plan::make_plan(moved.from, moved.to, options_.machine);
    for (const auto& step : plan.steps) totals.collectives += plan::is_local(step.move) ? 0 : 1;
  }
  double bytes = 0;
  for (const Input& input : inputs_) {
    if (input.is_held) bytes += local_bytes(out.values[input.id.index]);
  }
  totals.weight_bytes = static_cast<int64_t>(bytes);
  const double gap = std::max(0.0, solution.cost - solution.lower_bound);
  totals.lower_bound = std::max(0.0, totals.seconds() - (solution.exact ? 0.0 : gap));
}

Assignment ChoiceNetwork::assignment(const Solution& solution) {
  Assignment out;
  out.mesh = view_.mesh();
  out.values.resize(view_.graph().values.size());
  set_inputs(solution, out);
  set_nodes(solution, out);
  for (size_t i = 0; i < view_.graph().outputs.size(); ++i) {
    const bool is_tensor = view_.graph().outputs[i].kind == ArgKind::tensor;
    const auto buffer = view_.updated_buffer(i);
    out.outputs.push_back(buffer      ? out.values[buffer->index]
                          : is_tensor ? output_sharding(i)
                                      : Sharding());
  }
  set_moves(solution, out);
  for (const auto& [symbol, by] : view_.assumed()) out.divisible.push_back({symbol, by});
  set_totals(solution, out);
  return out;
}

/// The first node that reads the weight, or what is made of it and of weights alone, and has no row
/// in which that is sharded.
std::optional<size_t> ChoiceNetwork::reader_of_whole(ValueId weight) const {
  std::vector<ValueId> values = {weight};
  for (size_t i = 0; i < values.size(); ++i) {
    for (const auto& reader : readers_of(values[i])) {
      const bool can_shard = std::ranges::any_of(*rows_.of(reader.node), [&](const NodeRow& row) {
        return std::ranges::all_of(reader.operands,
                                   [&](size_t o) { return row.operands[o].has_sharded(); });
      });
      if (!can_shard) return reader.node;
      for (const ValueId made : view_.call(reader.node).results()) {
        const bool known = std::ranges::find(values, made) != values.end();
        if (view_.is_from_weights(made) && !known) values.push_back(made);
      }
    }
  }
  return std::nullopt;
}

std::string ChoiceNetwork::why_heavy() const {
  const Input* heaviest = nullptr;
  double all = 0;
  for (const Input& input : inputs_) {
    if (!input.is_held) continue;
    const double bytes = local_bytes(input.placements[0]);
    all += bytes;
    const bool lighter = heaviest != nullptr && bytes <= local_bytes(heaviest->placements[0]);
    if (!lighter && reader_of_whole(input.id)) heaviest = &input;
  }
  // A few bytes that stay whole are not the reason.
  if (heaviest == nullptr || local_bytes(heaviest->placements[0]) < 0.01 * all) return "";
  const size_t node = *reader_of_whole(heaviest->id);
  return join_text(view_.name(heaviest->id), " stays whole: ", view_.call(node).op(), " (node ",
                   view_.graph().nodes[node].name.value_or("?"), ") ",
                   view_.rule(node) == nullptr
                       ? "has no rule (run_decompositions() may replace it by ops that have one)"
                       : "needs it whole");
}

std::string ChoiceNetwork::why_impossible() {
  for (const Input& input : inputs_) {
    for (const auto& reader : readers_of(input.id)) {
      double least = std::numeric_limits<double>::infinity();
      for (const auto& produced : input.placements) {
        for (const NodeRow& row : *rows_.of(reader.node))
          least = std::min(least, read_all(input.id, {produced, {}}, reader, row));
      }
      if (least < std::numeric_limits<double>::infinity()) continue;
      const std::string why = rows_.axis(view_.mesh().ndim() - 1).why_whole(reader.node);
      return join_text(view_.name(input.id), " is to be ", input.placements[0].to_text(),
                       ", which ", view_.call(reader.node).op(), " (node ",
                       view_.graph().nodes[reader.node].name.value_or("?"), ") cannot use",
                       why.empty() ? "" : ": ", why);
    }
  }
  return "the placements that the plan requests exclude each other";
}

}  // namespace tessera::partition
