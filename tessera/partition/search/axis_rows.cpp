#include "tessera/partition/search/axis_rows.h"

#include <algorithm>

#include "tessera/base/errors.h"
#include "tessera/rules/choice/candidates.h"
#include "tessera/rules/code/reshape.h"
#include "tessera/sharding/local_shape.h"

namespace tessera::partition {
namespace {

using program::ValueId;
using rules::Row;

constexpr size_t kMostStrided = 4;     // kept for one value
constexpr int64_t kMostBackwards = 4;  // pieces of a strided shard that only a reader asks for

/// The call's arguments with another sharding for one operand.
std::vector<rules::NamedArg> args_with(const rules::OpCall& call, size_t operand,
                                       const Sharding& sharding) {
  std::vector<rules::NamedArg> args(call.args.begin(), call.args.end());
  size_t next = 0;
  for (auto& arg : args) {
    if (auto* one = std::get_if<Sharding>(&arg.value)) {
      if (next++ == operand) *one = sharding;
    } else if (auto* list = std::get_if<std::vector<Sharding>>(&arg.value)) {
      for (auto& s : *list) {
        if (next++ == operand) s = sharding;
      }
    }
  }
  return args;
}

bool is_reshape(std::string_view op) {
  return op == "aten::view" || op == "aten::reshape" || op == "aten::_unsafe_view" ||
         op == "aten::flatten.using_ints" || op == "aten::unflatten.int" ||
         op == "aten::_reshape_copy" || op == "aten::_reshape_alias";
}

}  // namespace

AxisRows::AxisRows(const ProgramView& view, const Pins& pins, int axis)
    : view_(view),
      pins_(pins),
      axis_(axis),
      ranks_(view.mesh().size(axis)),
      rows_(view.nodes()),
      partial_(view.graph().values.size()) {
  if (rules::find_kernel("mask") == nullptr) rules::enable_kernel("mask", rules::KernelComm::none);
  for (size_t n = view.nodes(); n-- > 0;) want_strided(n);
  for (size_t n = 0; n < view.nodes(); ++n) list(n);
}

bool AxisRows::makes_constant(size_t node) const {
  const auto& results = view_.call(node).results();
  return results.empty() || view_.source(results[0]) == ProgramView::Source::constant;
}

bool AxisRows::allowed(ValueId id, const Placement& p) const {
  if (p.is_replicate()) return true;
  if (view_.must_be_whole(id)) return false;
  if (p.is_partial()) {
    return p.reduce_op() == ReduceOp::sum || p.reduce_op() == ReduceOp::avg ||
           p.reduce_op() == ReduceOp::max || p.reduce_op() == ReduceOp::min;
  }
  if (p.kind() == Placement::Kind::ragged) return false;
  // The file may describe a result with fewer dims than its op gives it.
  if (p.dim() < 0 || p.dim() >= view_.whole(id).ndim()) return false;
  const int64_t size = view_.whole(id).shape()[static_cast<size_t>(p.dim())];
  if (chunk_interval(size, ranks_, ranks_ - 1).size() == 0) return false;
  if (p.kind() == Placement::Kind::strided && size % (p.split() * ranks_) != 0) return false;
  return view_.can_shard(id, p.dim(), ranks_);
}

bool AxisRows::add_strided(ValueId id, const Placement& p) {
  if (p.kind() != Placement::Kind::strided || !allowed(id, p)) return false;
  Placements& list = strided_[id.index];
  if (list.size() >= kMostStrided || std::ranges::find(list, p) != list.end()) return false;
  list.push_back(p);
  return true;
}

std::vector<Row> AxisRows::rows_with(size_t node, size_t operand, const Placement& p) const {
  const NodeCall& c = view_.call(node);
  const Sharding& whole = view_.whole(*c.operands()[operand]);
  const auto args = args_with(c.call(), operand, whole.with(axis_, p));
  return view_.rule(node)->rows({c.call().op, args, view_.mesh(), {}}, axis_);
}

std::optional<AxisRows::Placements> AxisRows::joint_results(size_t node, const Placement& p) const {
  const NodeCall& c = view_.call(node);
  const auto args = args_with(c.call(), 0, view_.whole(*c.operands()[0]).with(axis_, p));
  const auto axis = static_cast<size_t>(axis_);
  for (const auto& row : view_.rule(node)->joint({c.call().op, args, view_.mesh(), {}})) {
    if (row.operands[0][axis] != p || row.results.size() != c.results().size()) continue;
    Placements out;
    for (const auto& placements : row.results) out.push_back(placements[axis]);
    return out;
  }
  return std::nullopt;
}

/// Placements of operands that may give the wanted one of a result, strided ones only; for rules by
/// rows of any operand, for others of the first.
AxisRows::Placements AxisRows::operands_for(size_t node, size_t result,
                                            const Placement& wanted) const {
  const NodeCall& c = view_.call(node);
  const Sharding& from = view_.whole(*c.operands()[0]);
  const Sharding& to = view_.whole(c.results()[result]);
  Placements out;
  if (is_reshape(c.op())) {
    std::vector<int> order(static_cast<size_t>(view_.mesh().ndim()));
    for (size_t i = 0; i < order.size(); ++i) order[i] = static_cast<int>(i);
    const auto back = rules::reshape_placements(to.with(axis_, wanted), from.shape(), order);
    if (back) out.push_back((*back)[static_cast<size_t>(axis_)]);
  } else if (wanted.is_plain_shard() && from.ndim() == to.ndim()) {  // a part of a dim
    const auto dim = static_cast<size_t>(wanted.dim());
    const int64_t whole = from.shape()[dim], part = to.shape()[dim];
    if (part > 0 && part < whole && whole % part == 0)
      out.push_back(StridedShard(wanted.dim(), whole / part));
  }
  return out;
}

void AxisRows::want_strided(size_t node) {
  const rules::Rule* rule = view_.rule(node);
  const NodeCall& c = view_.call(node);
  if (rule == nullptr || rule->decide || c.operands().empty() || makes_constant(node)) return;
  for (size_t r = 0; r < c.results().size(); ++r) {
    const auto known = strided_.find(c.results()[r].index);
    Placements wanted = known == strided_.end() ? Placements() : known->second;
    if (rule->joint && c.operands()[0]) {
      for (int d = 0; d < view_.whole(c.results()[r]).ndim(); ++d) wanted.push_back(Shard(d));
      for (const auto& w : wanted) {
        if (!allowed(c.results()[r], w)) continue;
        for (const auto& p : operands_for(node, r, w)) {
          const bool few = p.kind() == Placement::Kind::strided && p.split() <= kMostBackwards;
          if (few && joint_results(node, p)) add_strided(*c.operands()[0], p);
        }
      }
      continue;
    }
    if (!rule->rows) continue;
    for (const auto& w : wanted) {  // as the plain shard of the same dim, strided
      for (const Row& row : rule->rows(c.call(), axis_)) {
        if (r >= row.results.size() || row.results[r] != Shard(w.dim())) continue;
        for (size_t o = 0; o < row.operands.size(); ++o) {
          if (row.operands[o].is_plain_shard() && c.operands()[o])
            add_strided(*c.operands()[o], w.on_dim(row.operands[o].dim()));
        }
      }
    }
  }
}

/// A partial value is passed on only where one can come in. What else the row wants partial is made
/// so of a whole value, at no cost of messages.
bool AxisRows::passes_given_partials(size_t node, const Row& row) const {
  if (row.letter >= 0) return true;
  const auto& operands = view_.call(node).operands();
  bool any_wanted = false, any_given = false;
  for (size_t o = 0; o < row.operands.size(); ++o) {
    if (!row.operands[o].is_partial() || !operands[o]) continue;
    const auto& can = partial_[operands[o]->index];
    any_wanted = true;
    any_given |= std::ranges::find(can, row.operands[o].reduce_op()) != can.end();
  }
  return !any_wanted || any_given;
}

bool AxisRows::fits(size_t node, const Row& row) const {
  const NodeCall& c = view_.call(node);
  if (row.results.size() != c.results().size() || row.operands.size() != c.operands().size())
    return false;
  // Programs have no kernels of rows; of these one can be written as other ops.
  if (!row.kernel.empty() && (row.kernel != "mask" || c.op() != "aten::embedding")) return false;
  if (row.as_is >= 0) return false;
  for (size_t o = 0; o < row.operands.size(); ++o) {
    if (!c.operands()[o]) continue;
    if (!allowed(*c.operands()[o], row.operands[o])) return false;
    if (view_.is_written(node, o) && row.results.size() == 1 && row.results[0] != row.operands[o])
      return false;
  }
  bool shards = false;
  for (size_t r = 0; r < row.results.size(); ++r) {
    if (!allowed(c.results()[r], row.results[r])) return false;
    shards |= !row.results[r].is_replicate();
  }
  // Means of parts that differ in size would have to be weighed.
  if (view_.rule(node)->scale && row.size > 0 && row.size % ranks_ != 0) return false;
  shards |= std::ranges::any_of(row.operands, [](const auto& p) { return !p.is_replicate(); });
  return shards && passes_given_partials(node, row);
}

std::vector<Row> AxisRows::rows_of_rule(size_t node) const {
  const NodeCall& c = view_.call(node);
  const rules::CandidateOptions all{.replicated_stays = false, .given_partials = false};
  std::vector<Row> out;
  const auto add = [&](const Row& row) {
    if (fits(node, row) && std::ranges::find(out, row) == out.end()) out.push_back(row);
  };
  const rules::Candidates candidates(*view_.rule(node), c.call(), all);
  for (const auto& candidate : candidates.of_axis(axis_)) add(candidate.row);
  for (size_t o = 0; o < c.operands().size(); ++o) {
    if (!c.operands()[o]) continue;
    const auto strided = strided_.find(c.operands()[o]->index);
    if (strided == strided_.end()) continue;
    for (const auto& p : strided->second) {
      for (const Row& row : rows_with(node, o, p)) add(row);
    }
  }
  // Strided results that nothing asked for (cat) would only spread.
  std::erase_if(out, [&](const Row& row) {
    const auto is_strided = [](const Placement& p) { return p.kind() == Placement::Kind::strided; };
    if (std::ranges::any_of(row.operands, is_strided)) return false;
    for (size_t r = 0; r < row.results.size(); ++r) {
      const auto known = strided_.find(c.results()[r].index);
      if (is_strided(row.results[r]) &&
          (known == strided_.end() ||
           std::ranges::find(known->second, row.results[r]) == known->second.end()))
        return true;
    }
    return false;
  });
  return out;
}

std::vector<Row> AxisRows::rows_of_joint(size_t node) const {
  const NodeCall& c = view_.call(node);
  std::vector<Row> out;
  if (c.operands().size() != 1 || !c.operands()[0]) return out;
  const ValueId id = *c.operands()[0];
  Placements tries;
  for (int d = 0; d < view_.whole(id).ndim(); ++d) tries.push_back(Shard(d));
  if (const auto strided = strided_.find(id.index); strided != strided_.end())
    tries.insert(tries.end(), strided->second.begin(), strided->second.end());
  for (const ReduceOp op : partial_[id.index]) tries.push_back(Partial(op));
  for (const auto& p : tries) {
    if (!allowed(id, p)) continue;
    auto results = joint_results(node, p);
    if (!results) continue;
    Row row;
    row.operands = {p};
    row.results = std::move(*results);
    if (p.is_sharded()) {
      row.letter = p.dim();
      row.size = view_.whole(id).shape()[static_cast<size_t>(p.dim())];
    }
    if (fits(node, row)) out.push_back(std::move(row));
  }
  return out;
}

std::string AxisRows::signature(size_t node) const {
  const NodeCall& c = view_.call(node);
  std::string out = c.op();
  const auto value = [&](ValueId id) {
    const Sharding& whole = view_.whole(id);
    append_text(out,
                join_text(" ", reinterpret_cast<uintptr_t>(whole.id()), ":",
                          static_cast<int>(view_.source(id)), view_.must_be_whole(id) ? "w" : ""));
    for (int d = 0; d < whole.ndim(); ++d) {
      if (view_.is_symbolic(id, d)) out += view_.can_shard(id, d, ranks_) ? "+" : "-";
    }
    for (const ReduceOp op : partial_[id.index]) out += reduce_op_name(op);
    if (const auto known = strided_.find(id.index); known != strided_.end()) {
      for (const auto& p : known->second) out += p.to_text();
    }
  };
  for (const auto& id : c.operands()) {
    if (id)
      value(*id);
    else
      out += " .";
  }
  out += " ->";
  for (const ValueId id : c.results()) value(id);
  for (const auto& arg : c.call().args) {
    out += ' ';
    if (const auto* i = std::get_if<int64_t>(&arg.value)) append_text(out, *i);
    if (const auto* b = std::get_if<bool>(&arg.value)) out += *b ? 't' : 'f';
    if (const auto* l = std::get_if<std::vector<int64_t>>(&arg.value)) out += list_text(*l);
    if (const auto* n = std::get_if<rules::Number>(&arg.value)) append_text(out, n->to_double());
    if (const auto* s = std::get_if<std::string>(&arg.value)) out += *s;
  }
  return out;
}

void AxisRows::list(size_t node) {
  const NodeCall& c = view_.call(node);
  auto& known = known_[signature(node)];
  if (!known) {
    std::vector<Row> rows;
    const rules::Rule* rule = view_.rule(node);
    if (rule != nullptr && ranks_ > 1 && !makes_constant(node) &&
        !view_.reads_metadata_only(node)) {
      if (rule->joint) {
        rows = rows_of_joint(node);
      } else if (rule->rows) {
        rows = rows_of_rule(node);
      }
    }
    Row whole;
    whole.operands.resize(c.operands().size());
    whole.results.resize(c.results().size());
    rows.push_back(std::move(whole));
    known = std::make_shared<const std::vector<Row>>(std::move(rows));
  }
  rows_[node] = known;
  for (const Row& row : *known) {
    for (size_t r = 0; r < row.results.size(); ++r) {
      const Placement& p = row.results[r];
      add_strided(c.results()[r], p);
      auto& can = partial_[c.results()[r].index];
      if (p.is_partial() && std::ranges::find(can, p.reduce_op()) == can.end())
        can.push_back(p.reduce_op());
    }
  }
}

std::vector<Placement> AxisRows::of_input(ValueId id) const {
  const Sharding& whole = view_.whole(id);
  if (ranks_ == 1) return {Replicate()};
  Placements all = {Replicate()};
  for (int d = 0; d < whole.ndim(); ++d) all.push_back(Shard(d));
  if (const auto known = strided_.find(id.index); known != strided_.end())
    all.insert(all.end(), known->second.begin(), known->second.end());
  const Pin* pin = pins_.find(id, axis_);
  if (pin != nullptr && !pin->any_shard) return {pin->placement};
  const ProgramView::Source source = view_.source(id);
  const bool may_be_sharded = (source == ProgramView::Source::weight && pins_.free_weights) ||
                              (source == ProgramView::Source::state && pins_.free_state);
  if (pin == nullptr && !may_be_sharded) return {Replicate()};
  std::erase_if(all, [&](const Placement& p) {
    return pin != nullptr ? !pin->allows(p) || !allowed(id, p) : !allowed(id, p);
  });
  return all;
}

std::string AxisRows::why_whole(size_t node) const {
  const rules::Rule* rule = view_.rule(node);
  if (makes_constant(node)) return "made of constants, the same on every rank";
  if (rule == nullptr) return view_.call(node).op().empty() ? "" : "the op has no rule";
  if (!rule->refused) return "";
  std::string out;
  for (const auto& refusal : rule->refused(view_.call(node).call(), axis_)) {
    if (refusal.why.find("nothing to gain") != std::string::npos || refusal.why == "must be whole")
      continue;
    std::string text = placements_text(refusal.operands) + ": " + refusal.why;
    if (out.find(text) == std::string::npos) out += (out.empty() ? "" : "; ") + text;
  }
  return out;
}

}  // namespace tessera::partition
