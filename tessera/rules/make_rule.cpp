#include <algorithm>
#include <memory>

#include "tessera/base/errors.h"
#include "tessera/rules/expand.h"
#include "tessera/sharding/local_shape.h"

namespace tessera::rules {
namespace {

using Lines = std::shared_ptr<const std::vector<Notation>>;

/// The local size of a letter; -1 if no operand or result has it.
int64_t local_letter(const Bound& bound, int letter, std::span<const Sharding> operands,
                     std::span<const Sharding> results) {
  for (size_t o = 0; o < bound.operands.size() && o < operands.size(); ++o) {
    const int dim = bound.dim_of(static_cast<int>(o), letter);
    if (!operands[o].defined() || dim < 0) continue;
    const int64_t here = operands[o].local_shape()[static_cast<size_t>(dim)];
    if (!bound.operand_dims[o][static_cast<size_t>(dim)].product) return here;
    const int64_t all = operands[o].shape()[static_cast<size_t>(dim)];
    if (all > 0) return here * bound.letters[static_cast<size_t>(letter)].size / all;
  }
  for (size_t r = 0; r < bound.result_dims.size() && r < results.size(); ++r) {
    const int dim = bound.dim_of_result(static_cast<int>(r), letter);
    if (results[r].defined() && dim >= 0) return results[r].local_shape()[static_cast<size_t>(dim)];
  }
  return -1;
}

/// The local value of a size attribute: of a letter, of a dim of an operand, or the shape of a
/// result (which the attribute lists).
Arg local_size(const Lines& lines, const Clause& c, const OpCall& call,
               std::span<const Sharding> operands, std::span<const Sharding> results) {
  const Arg* given = call.find(c.attribute);
  if (given == nullptr || std::holds_alternative<std::monostate>(*given)) return {};
  const auto* list = std::get_if<std::vector<int64_t>>(given);
  const auto one = [&](int64_t size) -> Arg {
    if (list != nullptr) return std::vector<int64_t>{size};
    return size;
  };
  if (c.of_operand >= 0) {
    return one(
        operands[static_cast<size_t>(c.of_operand)].local_shape()[static_cast<size_t>(c.of_dim)]);
  }
  const auto bound = bind(*lines, call);
  if (!bound) return *given;
  if (c.of_result >= 0) {
    if (list == nullptr) return *given;
    std::vector<int64_t> sizes = *list;
    const auto& dims = bound->result_dims[static_cast<size_t>(c.of_result)];
    for (size_t d = 0; d < dims.size() && d < sizes.size(); ++d) {
      if (dims[d].letter < 0 || bound->letters[static_cast<size_t>(dims[d].letter)].whole) continue;
      const int64_t here = local_letter(*bound, dims[d].letter, operands, results);
      if (here >= 0) sizes[d] = here;
    }
    return sizes;
  }
  for (size_t i = 0; i < bound->letters.size(); ++i) {
    if (bound->letters[i].key != c.letters[0]) continue;
    const int64_t here = local_letter(*bound, static_cast<int>(i), operands, results);
    if (here >= 0) return one(here);
  }
  return *given;
}

/// Means are computed over local elements, and Partial(avg) weights all ranks equally. So the
/// result of a rank with more or less than the average is weighted accordingly.
std::vector<double> weights(const Bound& bound, std::span<const Sharding> operands) {
  std::vector<double> out(bound.result_dims.size(), 1);
  for (size_t l = 0; l < bound.letters.size(); ++l) {
    const auto letter = static_cast<int>(l);
    const auto& info = bound.letters[l];
    if (info.size <= 0 || (info.reduce != ReduceOp::avg && !info.weighed)) continue;
    for (size_t o = 0; o < bound.operands.size(); ++o) {
      const int dim = bound.dim_of(static_cast<int>(o), letter);
      if (!operands[o].defined() || dim < 0) continue;
      double weight = static_cast<double>(operands[o].local_shape()[static_cast<size_t>(dim)]) /
                      static_cast<double>(info.size);
      if (!info.weighed) {
        for (int axis : operands[o].axes_of_dim(dim)) weight *= operands[o].mesh().size(axis);
      }
      for (size_t r = 0; r < out.size(); ++r) {
        if (info.weighed || bound.dim_of_result(static_cast<int>(r), letter) < 0) out[r] *= weight;
      }
      break;
    }
  }
  return out;
}

}  // namespace

Rule make_rule(std::string_view op, std::string_view text) {
  auto lines = std::make_shared<const std::vector<Notation>>(parse_notation(text));
  Rule rule;
  rule.op = op;
  rule.text = text;
  rule.result_count = static_cast<int>(lines->front().results.size());
  rule.rows = [lines](const OpCall& call, int axis) {
    const auto bound = bind(*lines, call);
    return bound ? expand(*bound, call, axis) : std::vector<Row>();
  };
  rule.refused = [lines](const OpCall& call, int axis) {
    const auto bound = bind(*lines, call);
    return bound ? refusals(*bound, call, axis) : std::vector<Refusal>();
  };
  rule.infer = [lines](const OpCall& call) {
    const auto bound = bind(*lines, call);
    return bound ? infer_shapes(*bound) : std::vector<ResultMeta>();
  };
  bool weighs = false;
  for (const auto& line : *lines) {
    for (const auto& c : line.clauses) {
      weighs |= c.kind == Clause::Kind::weigh ||
                (c.kind == Clause::Kind::reduce && c.ops[0] == ReduceOp::avg);
      if (c.kind != Clause::Kind::local) continue;
      const auto known = std::ranges::find(rule.localise, c.attribute, &LocalArg::name);
      if (known != rule.localise.end()) continue;
      rule.localise.push_back(
          {c.attribute, [lines, c](const OpCall& call, std::span<const Sharding> operands,
                                   std::span<const Sharding> results) {
             return local_size(lines, c, call, operands, results);
           }});
    }
  }
  if (weighs) {
    rule.scale = [lines](const OpCall& call, std::span<const Sharding> operands) {
      const auto bound = bind(*lines, call);
      if (!bound) return std::vector<double>();
      return weights(*bound, operands);
    };
  }
  return rule;
}

}  // namespace tessera::rules
