#include "tessera/rules/registry/derive.h"

#include <algorithm>
#include <array>
#include <utility>

#include "tessera/base/errors.h"
#include "tessera/rules/choice/choose.h"
#include "tessera/rules/code/code_rules.h"

namespace tessera::rules {
namespace {

struct Name {
  std::string packet;    // "aten::add_"
  std::string overload;  // "Tensor"
  std::string text() const { return overload.empty() ? packet : packet + "." + overload; }
};

Name split_name(std::string_view op) {
  const size_t colon = op.rfind(':');
  const size_t dot = op.find('.', colon == std::string_view::npos ? 0 : colon);
  if (dot == std::string_view::npos) return {std::string(op), ""};
  return {std::string(op.substr(0, dot)), std::string(op.substr(dot + 1))};
}

using Pair = std::pair<std::string_view, std::string_view>;

/// Overloads that write to arguments and are not named "..._out".
constexpr std::array<std::string_view, 20> kOutNames = {
    "out",           "L",        "Q",          "U",           "X",       "a",
    "dim_max",       "dim_min",  "dim_values", "eigenvalues", "eigvals", "grad_input",
    "inverse",       "out_mode", "output",     "result",      "sign",    "values",
    "values_stable", "OutTensor"};

/// out= overloads whose functional overload has another name.
constexpr std::array kOutOf = {
    Pair{"max.dim_max", "dim"},
    Pair{"max.unary_out", ""},
    Pair{"min.dim_min", "dim"},
    Pair{"min.unary_out", ""},
    Pair{"max.out", "other"},
    Pair{"min.out", "other"},
    Pair{"prod.int_out", "dim_int"},
    Pair{"sum.IntList_out", "dim_IntList"},
    Pair{"div.out_mode", "Tensor_mode"},
    Pair{"norm.dtype_out", "ScalarOpt_dim_dtype"},
    Pair{"norm.out", "ScalarOpt_dim"},
    Pair{"all.all_out", ""},
    Pair{"any.all_out", ""},
    Pair{"all.out", "dim"},
    Pair{"any.out", "dim"},
    Pair{"mean.out", "dim"},
    Pair{"mean.dtype_out", ""},
    Pair{"median.dim_values", "dim"},
    Pair{"nanmedian.dim_values", "dim"},
    Pair{"sort.values_stable", "stable"},
    Pair{"xlogy.OutTensor", "Tensor"},
    Pair{"xlogy.OutScalar_Self", "Scalar_Self"},
    Pair{"xlogy.OutScalar_Other", "Scalar_Other"},
    Pair{"bernoulli.float_out", "p"},
};

/// In-place variants whose functional variant has another name.
constexpr std::array kInPlaceOf = {
    Pair{"transpose_", "transpose.int"},
    Pair{"pow_.Tensor", "pow.Tensor_Tensor"},
    Pair{"pow_.Scalar", "pow.Tensor_Scalar"},
    Pair{"floor_divide_.Tensor", "floor_divide"},
    Pair{"ldexp_", "ldexp.Tensor"},
    Pair{"__ilshift__.Tensor", "__lshift__.Tensor"},
    Pair{"__ilshift__.Scalar", "__lshift__.Scalar"},
    Pair{"__irshift__.Tensor", "__rshift__.Tensor"},
    Pair{"__irshift__.Scalar", "__rshift__.Scalar"},
};

/// List variants whose element op has another name.
constexpr std::array kElementOf = {
    Pair{"maximum.Scalar", "clamp_min"},       Pair{"maximum.ScalarList", "clamp_min"},
    Pair{"minimum.Scalar", "clamp_max"},       Pair{"minimum.ScalarList", "clamp_max"},
    Pair{"norm.Scalar", "linalg_vector_norm"}, Pair{"powsum.Scalar", "linalg__powsum"},
    Pair{"pow.ScalarAndTensor", "pow.Scalar"}, Pair{"copy", "copy"},
};

/// Rows of an op for its out= form: the out operands are placed as the results.
template <typename Rows>
Rows with_out_operands(Rows rows) {
  for (auto& row : rows) {
    row.operands.insert(row.operands.end(), row.results.begin(), row.results.end());
  }
  return rows;
}

/// The same for a choice over all axes.
Choice with_out_operands(Choice choice, const OpCall& call) {
  const auto operands = call.operands();
  for (size_t r = 0; r < choice.results.size(); ++r) {
    const Sharding& out = operands[choice.operands.size()];
    choice.operands.push_back(out.defined() ? out.with_placements(choice.results[r], choice.order)
                                            : Sharding());
  }
  return choice;
}

Rule with_out(std::string_view op, const Rule& base) {
  Rule rule = base;
  rule.op = op;
  rule.text = base.text + "  (out= form)";
  const size_t outs = base.result_count < 0 ? 1 : static_cast<size_t>(base.result_count);
  rule.out_count = static_cast<int>(outs);
  const auto inner = [outs](const OpCall& call) {
    OpCall sub = call;
    sub.args = call.args.first(call.args.size() - outs);
    return sub;
  };
  if (base.rows) {
    rule.rows = [inner, rows = base.rows](const OpCall& call, int axis) {
      return with_out_operands(rows(inner(call), axis));
    };
  }
  if (base.refused) {
    rule.refused = [inner, outs, refused = base.refused](const OpCall& call, int axis) {
      auto out = refused(inner(call), axis);
      for (auto& refusal : out) refusal.operands.resize(refusal.operands.size() + outs);
      return out;
    };
  }
  if (base.joint) {
    rule.joint = [inner, joint = base.joint](const OpCall& call) {
      return with_out_operands(joint(inner(call)));
    };
  }
  if (base.decide) {
    rule.decide = [inner, decide = base.decide](const OpCall& call) {
      return with_out_operands(decide(inner(call)), call);
    };
  }
  if (base.infer) {
    rule.infer = [inner, infer = base.infer](const OpCall& call) { return infer(inner(call)); };
  }
  for (auto& local : rule.localise) {
    local.value = [inner, value = local.value](const OpCall& call,
                                               std::span<const Sharding> operands,
                                               std::span<const Sharding> results) {
      return value(inner(call), operands, results);
    };
  }
  if (base.scale) {
    rule.scale = [inner, scale = base.scale](const OpCall& call,
                                             std::span<const Sharding> operands) {
      return scale(inner(call), operands);
    };
  }
  return rule;
}

const Rule* find_out_base(const Name& name, const FindRule& find) {
  const size_t colon = name.packet.rfind(':') + 1;
  const std::string local = name.packet.substr(colon) + "." + name.overload;
  for (const auto& [out, overload] : kOutOf) {
    if (local == out) return find(Name{name.packet, std::string(overload)}.text());
  }
  if (name.overload.ends_with("_out")) {
    return find(Name{name.packet, name.overload.substr(0, name.overload.size() - 4)}.text());
  }
  if (std::ranges::find(kOutNames, name.overload) == kOutNames.end()) return nullptr;
  for (const char* overload : {"", "Tensor", "dim"}) {
    if (const Rule* rule = find(Name{name.packet, overload}.text())) return rule;
  }
  return nullptr;
}

const Rule* find_element(std::string_view packet, std::string_view overload, bool in_place,
                         const FindRule& find) {
  const std::string key = overload.empty() ? std::string(packet) : join_text(packet, ".", overload);
  const auto get = [&](std::string_view name, std::string_view ov) {
    return find(Name{join_text("aten::", name, in_place ? "_" : ""), std::string(ov)}.text());
  };
  for (const auto& [list, element] : kElementOf) {
    if (key != list) continue;
    const Name n = split_name(element);
    return get(n.packet, n.overload);
  }
  std::vector<std::string_view> tries = {overload, ""};
  if (overload == "List" || overload == "Tensor") tries = {"Tensor", "Tensor_Tensor", ""};
  if (overload == "Scalar" || overload == "ScalarList") tries = {"Scalar", "Tensor_Scalar", ""};
  for (const auto ov : tries) {
    if (const Rule* rule = get(packet, ov)) return rule;
  }
  return nullptr;
}

std::optional<Rule> derive_foreach(const Name& name, const FindRule& find) {
  std::string packet = name.packet.substr(std::string_view("aten::_foreach_").size());
  const bool in_place = packet.ends_with("_");
  if (in_place) packet.pop_back();
  const Rule* element = find_element(packet, name.overload, in_place, find);
  if (element == nullptr) return std::nullopt;
  return for_each(name.text(), *element);
}

}  // namespace

std::string functional_name(std::string_view op) {
  const Name name = split_name(op);
  const std::string local = name.text().substr(name.packet.rfind(':') + 1);
  for (const auto& [in_place, functional] : kInPlaceOf) {
    if (local == in_place) return join_text("aten::", functional);
  }
  return Name{name.packet.substr(0, name.packet.size() - 1), name.overload}.text();
}

bool is_in_place(std::string_view op) {
  const std::string packet = split_name(op).packet;
  return (packet.ends_with("_") && !packet.ends_with("__")) || packet.starts_with("aten::__i");
}

std::optional<Rule> derive(std::string_view op, const FindRule& find) {
  const Name name = split_name(op);
  if (const Rule* base = find_out_base(name, find)) return with_out(op, *base);
  if (name.packet.starts_with("aten::_foreach_")) return derive_foreach(name, find);
  if (is_in_place(op)) {
    if (const Rule* base = find(functional_name(op))) {
      Rule rule = *base;
      rule.op = op;
      rule.text += "  (in place)";
      rule.in_place = true;
      return rule;
    }
  }
  if (name.packet.ends_with("_copy")) {
    const Name view{name.packet.substr(0, name.packet.size() - 5), name.overload};
    if (const Rule* base = find(view.text())) {
      Rule rule = *base;
      rule.op = op;
      rule.text += "  (copy)";
      if (!rule.instead.empty()) {
        const Name local = split_name(rule.instead);
        rule.instead = Name{local.packet + "_copy", local.overload}.text();
      }
      return rule;
    }
  }
  return std::nullopt;
}

}  // namespace tessera::rules
