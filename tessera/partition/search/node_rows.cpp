#include "tessera/partition/search/node_rows.h"

#include <algorithm>

#include "tessera/base/errors.h"
#include "tessera/rules/choice/candidates.h"
#include "tessera/sharding/local_shape.h"

namespace tessera::partition {
namespace {

using program::ValueId;
using rules::Row;

double share_of(const Row& row, int ranks) {
  if (row.letter < 0 || row.size <= 0) return 1;
  return static_cast<double>(chunk_interval(row.size, ranks, 0).size()) /
         static_cast<double>(row.size);
}

std::vector<rules::NamedArg> args_at(const rules::OpCall& call, const Sharding& first) {
  std::vector<rules::NamedArg> args(call.args.begin(), call.args.end());
  for (auto& arg : args) {
    if (std::holds_alternative<Sharding>(arg.value)) {
      arg.value = first;
      break;
    }
  }
  return args;
}

}  // namespace

NodeRows::NodeRows(const ProgramView& view, const Pins& pins, const ComputeModel& compute)
    : view_(view), compute_(compute) {
  const int axes = view.mesh().ndim();
  if (axes > 2) {
    throw NotSupported(join_text("plans of programs are for meshes of one or two axes; ",
                                 view.mesh(), " has ", axes, ": flatten some of them"));
  }
  for (int axis = 0; axis < axes; ++axis) axes_.emplace_back(view, pins, axis);
  std::map<std::vector<const void*>, NodeRowList> known;
  for (size_t n = 0; n < view.nodes(); ++n) {
    std::vector<const void*> key;
    for (const auto& rows : axes_) key.push_back(&rows.of(n));
    auto& list = known[std::move(key)];
    if (!list) list = make(n);
    lists_.push_back(list);
  }
}

NodeRowList NodeRows::make(size_t node) const {
  std::vector<NodeRow> out;
  std::vector<int> picks(axes_.size(), 0);
  while (true) {
    add(node, picks, out);
    size_t axis = 0;
    while (axis < axes_.size() && ++picks[axis] == std::ssize(axes_[axis].of(node)))
      picks[axis++] = 0;
    if (axis == axes_.size()) break;
  }
  return std::make_shared<const std::vector<NodeRow>>(std::move(out));
}

/// Undefined if the placements do not go together: two axes that shard one dim must do so evenly,
/// in mesh order.
Sharding NodeRows::placed(ValueId id, const std::vector<Placement>& placements) const {
  const Sharding& whole = view_.whole(id);
  if (placements.size() == 2 && placements[0].is_sharded() &&
      placements[1].is_sharded(placements[0].dim())) {
    const int dim = placements[0].dim();
    const int64_t ranks = int64_t{view_.mesh().size(0)} * view_.mesh().size(1);
    const int64_t size = whole.shape()[static_cast<size_t>(dim)];
    const bool plain = placements[0].is_plain_shard() && placements[1].is_plain_shard();
    if (!plain || size % ranks != 0 || !view_.can_shard(id, dim, ranks)) return {};
  }
  return whole.with_placements(placements);
}

bool NodeRows::set_results(size_t node, const std::vector<const Row*>& rows, NodeRow& out) const {
  const NodeCall& c = view_.call(node);
  const rules::Rule* rule = view_.rule(node);
  std::vector<std::vector<Placement>> placements(c.results().size());
  if (rule != nullptr && rule->joint && rows.size() > 1 && out.operands[0].has_sharded()) {
    const auto args = args_at(c.call(), out.operands[0]);
    const auto found = rule->joint({c.call().op, args, view_.mesh(), {}});
    if (found.empty() || !std::ranges::equal(found[0].operands[0], out.operands[0].placements()))
      return false;
    placements = found[0].results;
    for (size_t r = 0; r < placements.size(); ++r) {
      for (size_t a = 0; a < axes_.size(); ++a) {
        if (!axes_[a].allowed(c.results()[r], placements[r][a])) return false;
      }
    }
  } else {
    for (const Row* row : rows) {
      for (size_t r = 0; r < placements.size(); ++r) placements[r].push_back(row->results[r]);
    }
  }
  for (size_t r = 0; r < placements.size(); ++r) {
    out.results.push_back(placed(c.results()[r], placements[r]));
    if (!out.results.back().defined()) return false;
  }
  return true;
}

bool NodeRows::add(size_t node, const std::vector<int>& picks, std::vector<NodeRow>& out) const {
  const NodeCall& c = view_.call(node);
  std::vector<const Row*> rows;
  double share = 1;
  NodeRow made;
  made.picks = picks;
  for (size_t a = 0; a < axes_.size(); ++a) {
    rows.push_back(&axes_[a].of(node)[static_cast<size_t>(picks[a])]);
    share *= share_of(*rows[a], view_.mesh().size(static_cast<int>(a)));
    if (!rows[a]->kernel.empty()) {
      if (!made.kernel.empty()) return false;  // one axis at a time
      made.kernel = rows[a]->kernel;
    }
  }
  std::vector<Sharding> whole;
  for (const auto& id : c.operands()) whole.push_back(id ? view_.whole(*id) : Sharding());
  if (!rules::conflict_of(rows, whole, view_.mesh()).empty()) return false;
  for (size_t o = 0; o < whole.size(); ++o) {
    std::vector<Placement> placements;
    for (const Row* row : rows) placements.push_back(row->operands[o]);
    made.operands.push_back(c.operands()[o] ? placed(*c.operands()[o], placements) : Sharding());
    if (c.operands()[o] && !made.operands.back().defined()) return false;
  }
  if (!set_results(node, rows, made)) return false;
  made.compute_seconds = compute_.seconds(c, made.operands, made.results, share);
  out.push_back(std::move(made));
  return true;
}

std::vector<Sharding> NodeRows::of_input(ValueId id) const {
  std::vector<Sharding> out;
  const auto add = [&](std::vector<Placement> placements) {
    const Sharding s = placed(id, placements);
    if (s.defined()) out.push_back(s);
  };
  for (const auto& p : axes_[0].of_input(id)) {
    if (axes_.size() == 1) {
      add({p});
      continue;
    }
    for (const auto& q : axes_[1].of_input(id)) add({p, q});
  }
  return out;
}

}  // namespace tessera::partition
