#include <algorithm>
#include <map>

#include "tessera/base/errors.h"
#include "tessera/base/shape.h"
#include "tessera/plan/plan.h"
#include "tessera/rules/choice/choose.h"
#include "tessera/rules/code/code_rules.h"
#include "tessera/rules/code/written.h"

/// Ops on lists of tensors: one result of all (cat, stack), or element by element (foreach,
/// optimizers).
namespace tessera::rules {
namespace {

bool is_skipped_by_cat(const Sharding& s) { return s.ndim() == 1 && s.shape()[0] == 0; }

std::string cat(const OpCall& call) {
  const auto tensors = tensors_of(call, "tensors");
  int ndim = 0;
  for (const auto& t : tensors) ndim = std::max(ndim, t.ndim());
  if (ndim == 0 || std::ranges::all_of(tensors, is_skipped_by_cat)) return "";
  for (const auto& t : tensors) {
    if (t.ndim() != ndim || (ndim > 1 && is_skipped_by_cat(t))) return "";
  }
  const auto dim = static_cast<size_t>(dim_of(call, "dim", ndim));
  std::string from = letters_for(ndim), to = from;
  from[dim] = upper(from[dim]);
  to[dim] = 'Z';
  return "[" + from + "] -> " + to + " ; move 0";
}

/// Concatenating tensors of equal length that are sharded equally along the dim gives a strided
/// result: each rank concatenates its parts.
std::vector<Row> cat_rows(const Rule& rule, const OpCall& call, int axis) {
  std::vector<Row> out = rule.rows(call, axis);
  const auto tensors = tensors_of(call, "tensors");
  if (out.empty() || cat(call).empty()) return out;
  const int dim = dim_of(call, "dim", tensors[0].ndim());
  const int64_t size = tensors[0].shape()[static_cast<size_t>(dim)];
  const bool alike = std::ranges::all_of(
      tensors, [&](const Sharding& t) { return t.shape()[static_cast<size_t>(dim)] == size; });
  if (!alike || size < 2) return out;
  Row row;
  row.operands.assign(tensors.size(), Shard(dim));
  const auto count = static_cast<int64_t>(tensors.size());
  row.results = {count == 1 ? Shard(dim) : StridedShard(dim, count)};
  row.letter = dim;
  row.size = size;
  out.push_back(std::move(row));
  return out;
}

std::string stack(const OpCall& call) {
  const auto tensors = tensors_of(call, "tensors");
  if (tensors.empty()) return "";
  std::string from = letters_for(tensors[0].ndim()), to = from;
  to.insert(static_cast<size_t>(dim_of(call, "dim", tensors[0].ndim() + 1)), "Z");
  return "[" + (from.empty() ? std::string(".") : from) + "] -> " + to + " ; move 0";
}

void add_move(Choice& choice, size_t operand, const Sharding& from, const Sharding& to) {
  choice.operands[operand] = to;
  if (!from.defined() || from == to) return;
  const auto plan = plan::cached_plan(from, to);
  choice.seconds += plan->seconds();
  choice.bytes += plan->bytes();
}

/// The tensor arguments of a call: which are lists, and where their operands begin.
struct TensorArg {
  size_t arg;
  size_t first;
  bool list;
};

std::vector<TensorArg> tensor_args(const OpCall& call) {
  std::vector<TensorArg> out;
  size_t first = 0;
  for (size_t i = 0; i < call.args.size(); ++i) {
    if (std::holds_alternative<Sharding>(call.args[i].value)) {
      out.push_back({i, first++, false});
    } else if (const auto* list = std::get_if<std::vector<Sharding>>(&call.args[i].value)) {
      out.push_back({i, first, true});
      first += list->size();
    }
  }
  return out;
}

size_t list_length(const OpCall& call) {
  for (const auto& arg : call.args) {
    if (const auto* list = std::get_if<std::vector<Sharding>>(&arg.value)) return list->size();
  }
  return 0;
}

/// The call for one element: the i-th tensor of each list; a tensor shared by all is replicated.
std::vector<NamedArg> element_args(const OpCall& call, size_t i) {
  std::vector<NamedArg> out;
  for (const auto& arg : call.args) {
    if (const auto* list = std::get_if<std::vector<Sharding>>(&arg.value)) {
      require(i < list->size(), call.op, ": lists of different lengths");
      out.push_back({arg.name, (*list)[i]});
    } else if (const auto* one = std::get_if<Sharding>(&arg.value)) {
      out.push_back({arg.name, one->defined() ? one->replicated() : *one});
    } else if (std::holds_alternative<std::vector<Number>>(arg.value)) {
      out.push_back({arg.name, std::monostate()});
    } else {
      out.push_back(arg);
    }
  }
  return out;
}

/// Whether several axes shard one dim, so that their order matters.
bool nests(std::span<const Placement> placements) {
  for (size_t a = 0; a < placements.size(); ++a) {
    for (size_t b = 0; b < a; ++b) {
      if (placements[a].is_sharded() && placements[b].is_sharded(placements[a].dim())) return true;
    }
  }
  return false;
}

/// The rows of the element rule that a list can use: a tensor shared by all elements stays
/// replicated, and the op itself runs.
Rule as_element(const Rule& element, const std::vector<TensorArg>& tensors) {
  Rule rule = element;
  if (!element.rows) return rule;
  rule.rows = [rows = element.rows, tensors](const OpCall& call, int axis) {
    auto out = rows(call, axis);
    std::erase_if(out, [&](const Row& row) {
      for (size_t i = 0; i < tensors.size(); ++i) {
        if (!tensors[i].list && !row.operands[i].is_replicate()) return true;
      }
      return !row.kernel.empty();
    });
    return out;
  };
  return rule;
}

Choice decide_each(const Rule& any_element, const OpCall& call) {
  Choice choice;
  const auto operands = call.operands();
  const auto tensors = tensor_args(call);
  const Rule element = as_element(any_element, tensors);
  choice.operands.resize(operands.size());
  for (const auto& t : tensors) {
    if (!t.list && operands[t.first].defined()) {
      add_move(choice, t.first, operands[t.first], operands[t.first].replicated());
    }
  }
  std::optional<std::vector<int>> order;
  std::map<std::vector<const Sharding::Node*>, Choice> known;  // many elements are equal
  std::vector<Sharding> keys;  // keeps the addresses in `known` valid
  for (size_t i = 0; i < list_length(call); ++i) {
    const auto args = element_args(call, i);
    const OpCall sub{element.op, args, call.mesh, {}};
    std::vector<const Sharding::Node*> key;
    for (const auto& s : sub.operands()) key.push_back(keys.emplace_back(s).id());
    auto [it, fresh] = known.try_emplace(std::move(key));
    if (fresh) it->second = choose(element, sub);
    const Choice& mine = it->second;
    // The results share one order; operands have their own.
    const bool orders = !element.in_place && std::ranges::any_of(mine.results, nests);
    if (orders && !order) order = mine.order;
    const bool fits = !orders || mine.order == *order;
    size_t at = 0;
    for (const auto& t : tensors) {
      const Sharding& to = mine.operands[at++];
      if (!t.list || !to.defined()) continue;
      choice.operands[t.first + i] = fits ? to : to.replicated();
    }
    for (const auto& r : mine.results) {
      if (element.in_place) break;  // in-place list ops return nothing
      choice.results.push_back(fits ? r : std::vector<Placement>(r.size()));
    }
    choice.seconds += mine.seconds;
    choice.bytes += mine.bytes;
  }
  if (order) choice.order = *order;
  return choice;
}

/// Everything in an optimizer's step has the parameter's sharding; what has another shape (step
/// counts, a scale) is replicated. The first `returned` lists are returned as results.
Choice decide_as_parameter(const OpCall& call, int returned) {
  Choice choice;
  const auto operands = call.operands();
  choice.operands.resize(operands.size());
  const auto tensors = tensor_args(call);
  const size_t count = list_length(call);
  for (const auto& t : tensors) {
    if (!t.list && operands[t.first].defined()) {
      add_move(choice, t.first, operands[t.first], operands[t.first].replicated());
    }
  }
  std::vector<Sharding> targets;
  std::optional<std::vector<int>> order;
  for (size_t i = 0; i < count; ++i) {
    const Sharding& parameter = operands[tensors[0].first + i];
    Sharding target = parameter.has_partial() ? parameter.replicated() : parameter;
    // Results share one nesting order; operands written in place keep their own.
    if (returned > 0 && nests(target.placements())) {
      if (!order) order = target.order();
      if (target.order() != *order) target = target.replicated();
    }
    targets.push_back(std::move(target));
  }
  for (const auto& t : tensors) {
    if (!t.list) continue;
    const auto& list = std::get<std::vector<Sharding>>(call.args[t.arg].value);
    for (size_t i = 0; i < list.size(); ++i) {
      if (!list[i].defined()) continue;
      const bool alike = i < count && std::ranges::equal(list[i].shape(), targets[i].shape());
      add_move(choice, t.first + i, list[i],
               alike ? list[i].with_placements(
                           {targets[i].placements().begin(), targets[i].placements().end()},
                           targets[i].has_default_order() ? std::vector<int>() : targets[i].order())
                     : list[i].replicated());
    }
    for (size_t i = 0; i < list.size() && returned > 0; ++i) {
      const auto placed = choice.operands[t.first + i].placements();
      choice.results.emplace_back(placed.begin(), placed.end());
    }
    --returned;
  }
  if (order) choice.order = *order;
  return choice;
}

/// The variant of an optimizer's step that returns new tensors.
Rule functional_step(std::string op, int returned) {
  Rule rule;
  rule.op = std::move(op);
  rule.text = "code: all as the parameter is";
  rule.result_count = -1;
  rule.decide = [returned](const OpCall& call) { return decide_as_parameter(call, returned); };
  rule.infer = [returned](const OpCall& call) {
    std::vector<ResultMeta> out;
    int lists = 0;
    for (const auto& arg : call.args) {
      const auto* list = std::get_if<std::vector<Sharding>>(&arg.value);
      if (list == nullptr || lists++ >= returned) continue;
      for (const auto& s : *list) {
        out.push_back({{s.shape().begin(), s.shape().end()},
                       {s.stride().begin(), s.stride().end()},
                       s.dtype()});
      }
    }
    return out;
  };
  return rule;
}

}  // namespace

Rule for_each(std::string_view op, const Rule& element) {
  Rule rule;
  rule.op = op;
  rule.text = "each element: " + element.text;
  rule.result_count = element.in_place ? 0 : -1;
  rule.in_place = element.in_place;
  rule.decide = [&element](const OpCall& call) { return decide_each(element, call); };
  if (element.infer) {
    rule.infer = [&element](const OpCall& call) {
      std::vector<ResultMeta> out;
      for (size_t i = 0; i < list_length(call); ++i) {
        const auto args = element_args(call, i);
        const OpCall sub{call.op, args, call.mesh, {}};
        for (auto& meta : element.infer(sub)) out.push_back(std::move(meta));
      }
      return out;
    };
  }
  return rule;
}

std::vector<Rule> list_rules() {
  std::vector<Rule> out;
  const Rule plain =
      written_rule("aten::cat", "code: the joined dim is whole, or becomes strided", cat);
  Rule joined = plain;
  joined.rows = [plain](const OpCall& call, int axis) { return cat_rows(plain, call, axis); };
  joined.infer = [](const OpCall& call) {
    std::vector<ResultMeta> metas;
    const auto tensors = tensors_of(call, "tensors");
    if (cat(call).empty()) return metas;
    ResultMeta meta{{tensors[0].shape().begin(), tensors[0].shape().end()}, {}, tensors[0].dtype()};
    const auto dim = static_cast<size_t>(dim_of(call, "dim", tensors[0].ndim()));
    for (size_t i = 1; i < tensors.size(); ++i) meta.shape[dim] += tensors[i].shape()[dim];
    meta.stride = contiguous_stride(meta.shape);
    metas.push_back(std::move(meta));
    return metas;
  };
  out.push_back(std::move(joined));
  for (const char* op : {"aten::stack", "aten::_stack"})
    out.push_back(written_rule(op, "code: a new whole dim", stack));
  for (const char* op :
       {"_fused_adam_", "_fused_adam_.tensor_lr", "_fused_adamw_", "_fused_adamw_.tensor_lr",
        "_fused_sgd_", "_fused_sgd_.tensor_lr", "_fused_adagrad_", "_fused_adagrad_.tensor_lr"}) {
    Rule rule;
    rule.op = std::string("aten::") + op;
    rule.text = "code: all as the parameter is";
    rule.result_count = 0;
    rule.in_place = true;
    rule.decide = [](const OpCall& call) { return decide_as_parameter(call, 0); };
    out.push_back(std::move(rule));
  }
  for (const auto& [op, returned] : {std::pair{"_fused_adam", 5}, std::pair{"_fused_adamw", 5},
                                     std::pair{"_fused_sgd", 3}, std::pair{"_fused_adagrad", 4}}) {
    for (const char* overload : {"", ".tensor_lr"})
      out.push_back(functional_step(join_text("aten::", op, overload), returned));
  }
  return out;
}

}  // namespace tessera::rules
