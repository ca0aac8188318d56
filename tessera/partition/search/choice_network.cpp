#include "tessera/partition/search/choice_network.h"

#include <algorithm>

#include "tessera/base/errors.h"

namespace tessera::partition {
namespace {

using program::ArgKind;
using program::ValueId;

constexpr double kInfinite = std::numeric_limits<double>::infinity();
constexpr size_t kNoNode = static_cast<size_t>(-1);

void add_once(std::vector<Sharding>& list, const Sharding& s) {
  if (std::ranges::find(list, s) == list.end()) list.push_back(s);
}

const void* as_key(size_t number) { return reinterpret_cast<const void*>(number); }

}  // namespace

ChoiceNetwork::ChoiceNetwork(const ProgramView& view, const Pins& pins, const NodeRows& rows,
                             const NetworkOptions& options)
    : view_(view),
      pins_(pins),
      rows_(rows),
      options_(options),
      moves_(options.machine),
      made_by_(view.graph().values.size(), {kNoNode, 0}) {
  add_nodes();
  add_inputs();
  for (uint32_t v = 0; v < view.graph().values.size(); ++v) {
    if (view.whole(ValueId{v}).defined() && view.tied(ValueId{v}) == ValueId{v}) add_value({v});
  }
}

void ChoiceNetwork::add_nodes() {
  for (size_t n = 0; n < view_.nodes(); ++n) {
    const auto& list = *rows_.of(n);
    node_variable_.push_back(network_.add_variable(static_cast<int>(list.size())));
    for (size_t s = 0; s < list.size(); ++s)
      network_.add(node_variable_[n], static_cast<int>(s), list[s].compute_seconds);
    const auto& results = view_.call(n).results();
    for (size_t r = 0; r < results.size(); ++r) made_by_[results[r].index] = {n, r};
  }
}

void ChoiceNetwork::add_inputs() {
  for (const auto& argument : view_.graph().inputs) {
    if (argument.kind != ArgKind::tensor) continue;
    const auto id = argument.as<ValueId>();
    if (view_.tied(id) != id) continue;
    Input input{id, -1, rows_.of_input(id), view_.source(id) != ProgramView::Source::input};
    require(!input.placements.empty(), "the plan shards ", view_.name(id), ", ",
            view_.whole(id).to_text(), ", in a way that is not possible: too few elements, or a ",
            "size that need not be divisible");
    input.variable = network_.add_variable(static_cast<int>(input.placements.size()));
    if (view_.source(id) == ProgramView::Source::weight ||
        view_.source(id) == ProgramView::Source::state) {
      for (size_t s = 0; s < input.placements.size(); ++s) {
        network_.add(input.variable, static_cast<int>(s),
                     options_.weight_price * local_bytes(input.placements[s]));
      }
    }
    input_of_[id.index] = inputs_.size();
    inputs_.push_back(std::move(input));
  }
}

ChoiceNetwork::Maker ChoiceNetwork::maker_of(ValueId id) const {
  Maker maker;
  if (const auto input = input_of_.find(view_.tied(id).index); input != input_of_.end()) {
    const Input& in = inputs_[input->second];
    maker.variable = in.variable;
    maker.produced = in.placements;
    return maker;
  }
  const auto [node, result] = made_by_[id.index];
  if (node == kNoNode) return maker;
  maker.variable = node_variable_[node];
  maker.list = rows_.of(node).get();
  maker.result = result;
  for (const NodeRow& row : *rows_.of(node)) maker.produced.push_back(row.results[result]);
  return maker;
}

std::vector<ChoiceNetwork::NodeReader> ChoiceNetwork::readers_of(ValueId id) const {
  std::vector<NodeReader> out;
  for (const auto& reader : view_.readers(id)) {
    if (reader.node == view_.nodes() || view_.reads_metadata_only(reader.node)) continue;
    const auto known = std::ranges::find(out, reader.node, &NodeReader::node);
    if (known != out.end()) {
      known->operands.push_back(reader.operand);
    } else {
      out.push_back({reader.node, {reader.operand}});
    }
  }
  return out;
}

Sharding ChoiceNetwork::output_sharding(size_t output) const {
  const auto id = view_.graph().outputs[output].as<ValueId>();
  std::vector<Placement> placements;
  for (int axis = 0; axis < view_.mesh().ndim(); ++axis)
    placements.push_back(pins_.output(output, axis));
  return view_.whole(id).with_placements(std::move(placements));
}

double ChoiceNetwork::move(ValueId id, const Sharding& from, const Sharding& to) {
  const MoveCost& cost = moves_(from, to);
  if (cost.collectives > 0 && !options_.move_weights && view_.is_from_weights(id)) return kInfinite;
  return cost.seconds;
}

double ChoiceNetwork::read(ValueId id, const Copies& state, const Sharding& needed) {
  // What must be read as it is pinned cannot be read as it was produced.
  if (state.only_copy && needed == state.produced && needed != state.copy) return kInfinite;
  const double direct = state.only_copy ? kInfinite : move(id, state.produced, needed);
  return state.copy.defined() ? std::min(direct, move(id, state.copy, needed)) : direct;
}

double ChoiceNetwork::read_all(ValueId id, const Copies& state, const NodeReader& reader,
                               const NodeRow& row) {
  const auto& operands = reader.operands;
  double sum = 0;
  for (size_t i = 0; i < operands.size(); ++i) {
    const Sharding& needed = row.operands[operands[i]];
    if (view_.is_written(reader.node, operands[i]) &&
        (needed != state.produced || (state.only_copy && needed != state.copy)))
      return kInfinite;  // a copy would be written
    bool again = false;
    for (size_t j = 0; j < i; ++j) again |= row.operands[operands[j]] == needed;
    if (!again) sum += read(id, state, needed);
  }
  return sum;
}

void ChoiceNetwork::add_value(ValueId id) {
  const Maker maker = maker_of(id);
  if (maker.variable < 0) return;
  const auto readers = readers_of(id);
  std::vector<Sharding> outputs;
  bool updates = false;
  for (const auto& reader : view_.readers(id)) {
    if (reader.node != view_.nodes()) continue;
    if (view_.updated_buffer(reader.operand)) {
      updates = true;
    } else {
      outputs.push_back(output_sharding(reader.operand));
    }
  }
  const bool pinned = maker.list != nullptr && pins_.has(id);
  const bool comes_whole = maker.produced.size() == 1 && maker.produced[0].is_replicated();
  if (pinned || (readers.size() + outputs.size() > 1 && !comes_whole))
    add_states(id, maker, readers, outputs);
  if (updates) add_updates(id, maker);
  if (states_.contains(id.index)) return;
  for (size_t s = 0; s < maker.produced.size(); ++s) {
    for (const auto& output : outputs)
      network_.add(maker.variable, static_cast<int>(s), move(id, maker.produced[s], output));
  }
  for (const auto& reader : readers) {
    const NodeRowList& list = rows_.of(reader.node);
    std::vector<const void*> key = {maker.list, as_key(maker.result), list.get(),
                                    as_key(view_.is_from_weights(id) ? 1 : 0)};
    for (const size_t o : reader.operands) key.push_back(as_key(o));
    if (maker.list == nullptr) {
      for (const auto& s : maker.produced) key.push_back(s.id());
    }
    auto& table = tables_[std::move(key)];
    if (!table) {
      auto costs = std::make_shared<std::vector<double>>();
      for (const auto& produced : maker.produced) {
        const Copies state{produced, {}};
        for (const NodeRow& row : *list) costs->push_back(read_all(id, state, reader, row));
      }
      table = std::move(costs);
    }
    network_.add(maker.variable, node_variable_[reader.node], table);
  }
}

/// The new content of a buffer is brought to the sharding that the buffer has.
void ChoiceNetwork::add_updates(ValueId id, const Maker& maker) {
  for (const auto& reader : view_.readers(id)) {
    const auto buffer =
        reader.node == view_.nodes() ? view_.updated_buffer(reader.operand) : std::nullopt;
    if (!buffer) continue;
    const Input& input = inputs_[input_of_.at(buffer->index)];
    if (input.variable == maker.variable) continue;  // the buffer itself
    const auto found = states_.find(id.index);
    const bool has_states = found != states_.end();
    std::vector<Copies> forms;
    if (!has_states) {
      for (const auto& produced : maker.produced) forms.push_back({produced, {}});
    }
    const auto& from = has_states ? *found->second.second : forms;
    std::vector<const void*> key = {as_key(3)};
    for (const Copies& state : from) {
      key.insert(key.end(),
                 {state.produced.id(), state.copy.id(), as_key(state.only_copy ? 1 : 0)});
    }
    for (const auto& stored : input.placements) key.push_back(stored.id());
    auto& table = tables_[std::move(key)];
    if (!table) {
      auto costs = std::make_shared<std::vector<double>>();
      for (const Copies& state : from) {
        for (const auto& stored : input.placements) costs->push_back(read(id, state, stored));
      }
      table = std::move(costs);
    }
    network_.add(has_states ? found->second.first : maker.variable, input.variable, table);
  }
}

/// What more than one reader may need and what takes messages to get from some of the forms in
/// which it is produced.
std::vector<Sharding> ChoiceNetwork::copies_worth_making(ValueId id, const Maker& maker,
                                                         const std::vector<NodeReader>& readers,
                                                         const std::vector<Sharding>& outputs) {
  std::vector<std::pair<Sharding, int>> wanted;
  const auto want = [&](const Sharding& s) {
    for (auto& [known, times] : wanted) {
      if (known == s) {
        ++times;
        return;
      }
    }
    wanted.emplace_back(s, 1);
  };
  for (const auto& reader : readers) {
    std::vector<Sharding> needs;
    for (const NodeRow& row : *rows_.of(reader.node)) {
      for (const size_t o : reader.operands) add_once(needs, row.operands[o]);
    }
    for (const auto& s : needs) want(s);
  }
  for (const auto& s : outputs) want(s);
  std::vector<Sharding> out;
  for (const auto& [s, times] : wanted) {
    if (times < 2 || s.has_partial()) continue;
    const bool takes_messages = std::ranges::any_of(maker.produced, [&](const Sharding& from) {
      return moves_(from, s).collectives > 0 && move(id, from, s) < kInfinite;
    });
    if (takes_messages) out.push_back(s);
  }
  return out;
}

/// What a pinned value is read as: the pins on their axes, on others as it is produced, if that is
/// not partial.
std::vector<Sharding> ChoiceNetwork::pinned_forms(ValueId id, const Maker& maker) const {
  std::vector<Sharding> out;
  for (const auto& produced : maker.produced) {
    std::vector<Placement> placements;
    for (int axis = 0; axis < view_.mesh().ndim(); ++axis) {
      const Pin* pin = pins_.find(id, axis);
      const Placement& now = produced.placement(axis);
      placements.push_back(pin != nullptr ? pin->placement : now.is_partial() ? Replicate() : now);
    }
    add_once(out, view_.whole(id).with_placements(std::move(placements)));
  }
  return out;
}

ChoiceNetwork::States ChoiceNetwork::states_of(ValueId id, const Maker& maker,
                                               const std::vector<NodeReader>& readers,
                                               const std::vector<Sharding>& outputs) {
  std::vector<Sharding> forms;
  for (const auto& s : maker.produced) add_once(forms, s);
  std::vector<Copies> states;
  if (maker.list != nullptr && pins_.has(id)) {
    const auto pinned = pinned_forms(id, maker);
    for (const auto& produced : forms) {
      for (const auto& copy : pinned) states.push_back({produced, copy, true});
    }
  } else {
    const auto copies = copies_worth_making(id, maker, readers, outputs);
    for (const auto& produced : forms) {
      states.push_back({produced, {}});
      for (const auto& copy : copies) {
        if (moves_(produced, copy).collectives > 0 && move(id, produced, copy) < kInfinite)
          states.push_back({produced, copy});
      }
    }
  }
  return std::make_shared<const std::vector<Copies>>(std::move(states));
}

void ChoiceNetwork::add_states(ValueId id, const Maker& maker,
                               const std::vector<NodeReader>& readers,
                               const std::vector<Sharding>& outputs) {
  std::vector<const void*> key = {maker.list, as_key(maker.result),
                                  as_key(view_.is_from_weights(id) ? 1 : 0)};
  if (maker.list == nullptr) {
    for (const auto& s : maker.produced) key.push_back(s.id());
  }
  if (pins_.has(id)) key.push_back(as_key(id.index));
  for (const auto& s : outputs) key.push_back(s.id());
  for (const auto& reader : readers) {
    key.push_back(rows_.of(reader.node).get());
    for (const size_t o : reader.operands) key.push_back(as_key(o));
  }
  States& states = known_states_[key];
  if (!states) states = states_of(id, maker, readers, outputs);
  const int variable = network_.add_variable(static_cast<int>(states->size()));
  states_[id.index] = {variable, states};

  for (size_t s = 0; s < states->size(); ++s) {
    for (const auto& output : outputs)
      network_.add(variable, static_cast<int>(s), read(id, (*states)[s], output));
  }
  auto& made = tables_[{states.get(), as_key(1), maker.list, as_key(maker.result)}];
  if (!made) {
    auto costs = std::make_shared<std::vector<double>>();
    for (const auto& produced : maker.produced) {
      for (const Copies& state : *states) {
        const bool same = state.produced == produced;
        const bool copied = state.copy.defined();
        costs->push_back(!same ? kInfinite : copied ? move(id, produced, state.copy) : 0.0);
      }
    }
    made = std::move(costs);
  }
  network_.add(maker.variable, variable, made);
  for (const auto& reader : readers) {
    const NodeRowList& list = rows_.of(reader.node);
    std::vector<const void*> reader_key = {states.get(), as_key(2), list.get()};
    for (const size_t o : reader.operands) reader_key.push_back(as_key(o));
    auto& table = tables_[std::move(reader_key)];
    if (!table) {
      auto costs = std::make_shared<std::vector<double>>();
      for (const Copies& state : *states) {
        for (const NodeRow& row : *list) costs->push_back(read_all(id, state, reader, row));
      }
      table = std::move(costs);
    }
    network_.add(variable, node_variable_[reader.node], table);
  }
}

}  // namespace tessera::partition
