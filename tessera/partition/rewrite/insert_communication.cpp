#include "tessera/partition/rewrite/insert_communication.h"

#include <algorithm>

#include "tessera/base/errors.h"
#include "tessera/rules/registry/derive.h"

namespace tessera::partition {
namespace {

using program::Graph;
using program::ValueId;

/// How many nodes ahead of its reader an input is gathered.
constexpr size_t kAhead = 8;

/// By value: the node after which it is there; 0 for inputs, 1 + the index for results.
std::vector<size_t> defined_after(const Graph& graph) {
  std::vector<size_t> out(graph.values.size(), 0);
  for (size_t i = 0; i < graph.nodes.size(); ++i) {
    for (const auto& output : graph.nodes[i].outputs) {
      program::each_value(output, [&](ValueId id) { out[id.index] = i + 1; });
    }
  }
  return out;
}

bool holds_the_same(const Sharding& a, const Sharding& b) {
  return a == b || (std::ranges::equal(a.placements(), b.placements()) && a.order() == b.order());
}

/// The last node that reads a value in this sharding.
size_t last_reader(const Assignment& assignment, const Redistribution& move) {
  size_t last = move.first_reader;
  for (size_t i = move.first_reader; i < assignment.nodes.size(); ++i) {
    for (const Operand& operand : assignment.nodes[i].operands) {
      if (operand.value == move.value && operand.needed.defined() &&
          holds_the_same(operand.needed, move.to)) {
        last = i;
      }
    }
  }
  return last;
}

}  // namespace

bool is_in_place(const program::Node& node) { return rules::is_in_place(node.op_name().first); }

Communication::Communication(Emitter& emit, const Graph& global, const Assignment& assignment,
                             const DeviceMesh& mesh, const cost::Machine& machine)
    : emit_(emit), assignment_(assignment) {
  for (const Redistribution& one : assignment.redistributions) {
    Move move;
    move.what = &one;
    move.plan = plan::make_plan(seen_in(one.from, mesh), seen_in(one.to, mesh), machine);
    if (!holds_the_same(one.from, assignment.of(one.value))) {
      const auto earlier = std::ranges::find_if(moves_, [&](const Move& other) {
        return other.what->value == one.value && holds_the_same(other.what->to, one.from);
      });
      ensure(earlier != moves_.end(), "a redistribution starts from a sharding that is not there");
      move.source = static_cast<size_t>(earlier - moves_.begin());
    }
    moves_.push_back(std::move(move));
  }
  place_starts(global);
}

void Communication::place_starts(const Graph& global) {
  const auto defined = defined_after(global);
  std::vector<size_t> writes;
  for (size_t i = 0; i < global.nodes.size(); ++i) {
    if (is_in_place(global.nodes[i])) writes.push_back(i);
  }
  for (size_t m = 0; m < moves_.size(); ++m) {
    Move& move = moves_[m];
    const size_t reader = move.what->first_reader;
    size_t start = defined[move.what->value.index];
    if (start == 0 && reader > kAhead) start = reader - kAhead;
    // What is written in between must be seen: then it starts when it is read.
    const size_t last = last_reader(assignment_, *move.what);
    for (const size_t write : writes) {
      if (write >= start && write < reader) start = reader;
      const auto& operands = assignment_.nodes[write].operands;
      const bool written = !operands.empty() && operands[0].value == move.what->value;
      if (written && write >= reader && write < last) {
        throw NotSupported(join_text(
            "node ", write, " (", global.nodes[write].name.value_or(global.nodes[write].target),
            ") writes to ", global.value(move.what->value).name,
            ", which is read in another sharding before and after: export the program with "
            "run_decompositions(), which has no writes"));
      }
    }
    move.start_before = start;
    if (!move.source && start < reader && has_messages(move.plan)) starts_.emplace(start, m);
    readers_.emplace(reader, m);
  }
}

void Communication::start(Move& move) {
  if (move.finish || move.done) return;
  const ValueId from = move.source ? moves_[*move.source].done.value() : move.what->value;
  move.finish = start_plan(emit_, move.plan, from);
}

void Communication::complete(size_t index) {
  Move& move = moves_[index];
  if (move.done) return;
  if (move.source) complete(*move.source);
  start(move);
  move.done = move.finish();
  for (Move& other : moves_) {  // the next of a chain can start
    if (other.source == index && has_messages(other.plan)) start(other);
  }
}

void Communication::before_node(size_t index) {
  const auto [first_start, last_start] = starts_.equal_range(index);
  for (auto it = first_start; it != last_start; ++it) start(moves_[it->second]);
  const auto [first, last] = readers_.equal_range(index);
  for (auto it = first; it != last; ++it) complete(it->second);
}

ValueId Communication::local(ValueId value, const Sharding& needed) const {
  if (!needed.defined() || holds_the_same(needed, assignment_.of(value))) return value;
  for (const Move& move : moves_) {
    if (move.what->value != value || !holds_the_same(move.what->to, needed)) continue;
    ensure(move.done.has_value(), "a value is read before it is redistributed");
    return *move.done;
  }
  const auto plan = plan::make_plan(assignment_.of(value), needed, cost::Machine{});
  ensure(plan.steps.empty(), "an assignment lacks a redistribution that a node needs");
  return value;
}

}  // namespace tessera::partition
