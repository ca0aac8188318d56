#pragma once

#include <random>
#include <set>

#include "tessera/base/errors.h"
#include "tessera/dtensor/dispatch/op/op_name.h"
#include "tessera/rules/choice/choose.h"
#include "tests/rules_proof/sample.h"
#include "tests/rules_proof/split_combine.h"
#include "tests/rules_proof/stand_ins_attention.h"
#include "tests/rules_proof/stand_ins_kernels.h"

/// combine(op(split(x))) == op(x), for a row of a rule.
namespace tessera::test {

using rules::Arg;
using rules::NamedArg;
using rules::OpCall;
using rules::Rule;

/// The call as rules see it, operands placed by `place(operand, tensor)`.
class Call {
 public:
  template <typename Place>
  Call(const Sample& sample, const DeviceMesh& mesh, const Place& place) : mesh_(mesh) {
    const auto& schema = sample.op.schema();
    name_ = schema.name() + (schema.overload_name().empty() ? "" : "." + schema.overload_name());
    size_t operand = 0;
    for (size_t i = 0; i < sample.stack.size(); ++i) {
      args_.push_back({schema.arguments()[i].name(),
                       arg(sample.stack[i], schema.arguments()[i].type(), operand, place)});
    }
  }

  OpCall get() const { return {name_, args_, mesh_, {}}; }

 private:
  template <typename Place>
  static Sharding placed(const at::Tensor& t, size_t operand, const Place& place) {
    return t.defined() ? place(operand, t) : Sharding();
  }

  template <typename Place>
  Arg arg(const c10::IValue& v, const c10::TypePtr& type, size_t& operand, const Place& place) {
    if (is_tensor_type(type)) {
      if (v.isNone()) {
        if (type->str().find('[') != std::string::npos) return std::monostate();
        ++operand;
        return Sharding();
      }
      if (v.isTensor()) return placed(v.toTensor(), operand++, place);
      std::vector<Sharding> list;
      for (const auto& item : v.toListRef())
        list.push_back(placed(item.isTensor() ? item.toTensor() : at::Tensor(), operand++, place));
      return list;
    }
    if (v.isBool()) return v.toBool();
    if (v.isInt()) return v.toInt();
    if (v.isDouble()) return v.toDouble();
    if (v.isString()) return v.toStringRef();
    if (v.isIntList()) return v.toIntVector();
    if (v.isDoubleList()) {
      const std::vector<double> list = v.toDoubleVector();
      return std::vector<rules::Number>(list.begin(), list.end());
    }
    return std::monostate();
  }

  std::string name_;
  std::vector<NamedArg> args_;
  DeviceMesh mesh_;
};

inline Sharding sharding_of(const at::Tensor& x, const DeviceMesh& mesh,
                            std::vector<Placement> placements, std::vector<int> order = {}) {
  return Sharding(mesh, std::move(placements), x.sizes().vec(),
                  {.dtype = static_cast<DType>(x.scalar_type()), .order = std::move(order)});
}

inline std::vector<at::Tensor> tensors_in(const torch::jit::Stack& stack, bool results = false) {
  std::vector<at::Tensor> out;
  for (const auto& v : stack) {
    if (v.isTensor()) {
      out.push_back(v.toTensor());
    } else if (v.isTensorList()) {
      for (const at::Tensor& t : v.toTensorVector()) out.push_back(t);
    } else if (v.isList() && !results) {
      for (const auto& item : v.toListRef()) {
        if (item.isTensor() || item.isNone())
          out.push_back(item.isTensor() ? item.toTensor() : at::Tensor());
      }
    } else if (results) {
      out.emplace_back();
    }
  }
  return out;
}

/// The operands in order, with undefined tensors for None.
inline std::vector<at::Tensor> operands_in(const Sample& s) {
  std::vector<at::Tensor> out;
  for (size_t i = 0; i < s.stack.size(); ++i) {
    const auto& type = s.op.schema().arguments()[i].type();
    if (!is_tensor_type(type)) continue;
    const auto& v = s.stack[i];
    if (v.isTensor()) {
      out.push_back(v.toTensor());
    } else if (v.isNone()) {
      if (type->str().find('[') == std::string::npos) out.emplace_back();
    } else {
      for (const auto& item : v.toListRef())
        out.push_back(item.isTensor() ? item.toTensor() : at::Tensor());
    }
  }
  return out;
}

/// The stack with other tensors.
inline torch::jit::Stack with_tensors(const Sample& s, const std::vector<at::Tensor>& tensors) {
  torch::jit::Stack out;
  size_t next = 0;
  for (size_t i = 0; i < s.stack.size(); ++i) {
    const auto& v = s.stack[i];
    const auto& type = s.op.schema().arguments()[i].type();
    if (!is_tensor_type(type) || (v.isNone() && type->str().find('[') != std::string::npos)) {
      out.push_back(v);
    } else if (v.isTensor()) {
      out.push_back(tensors[next++]);
    } else if (v.isNone()) {
      out.push_back(v);
      ++next;
    } else if (v.isTensorList()) {
      c10::List<at::Tensor> list;
      for (size_t k = 0; k < v.toListRef().size(); ++k) list.push_back(tensors[next++]);
      out.push_back(list);
    } else {
      c10::List<std::optional<at::Tensor>> list;
      for (size_t k = 0; k < v.toListRef().size(); ++k, ++next) {
        list.push_back(tensors[next].defined() ? std::optional<at::Tensor>(tensors[next])
                                               : std::nullopt);
      }
      out.push_back(list);
    }
  }
  return out;
}

inline c10::IValue to_ivalue(const Arg& arg) {
  if (const auto* ints = std::get_if<std::vector<int64_t>>(&arg)) return *ints;
  if (const auto* i = std::get_if<int64_t>(&arg)) return *i;
  return {};
}

/// The op's name as rules know it.
inline std::string name_of(const c10::OperatorHandle& op) {
  return dtensor::op_name(op.operator_name());
}

/// Runs the op, or what stands in for its kernel.
inline void call_op(const c10::OperatorHandle& op, torch::jit::Stack& stack) {
  for (const auto* all : {&attention::kStandIns, &kernels::kStandIns}) {
    const auto found = all->find(name_of(op));
    if (found == all->end()) continue;
    const Results results = found->second(Arguments(op.schema(), stack));
    stack.assign(results.begin(), results.end());
    return;
  }
  op.callBoxed(stack);
}

struct Proven {
  const Rule* rule;
  const Sample* sample;
  std::vector<at::Tensor> operands = {};
  std::vector<at::Tensor> expected = {};  // results
  bool writes = false;                    // results are the operands
  /// How the op is run, on the whole operands and on parts of them.
  std::function<void(const c10::OperatorHandle&, torch::jit::Stack&)> call = call_op;
  /// By how many roundings of its type, at the size of the largest of what is put together, a
  /// result may be off: 0 where all arithmetic is exact. Without: see `alike`.
  std::optional<double> roundings = {};
};

/// Fills in what the op gives for the whole operands.
inline Proven reference(Proven p) {
  const Sample& sample = *p.sample;
  p.operands = operands_in(sample);
  std::vector<at::Tensor> copies;
  for (const auto& t : p.operands) copies.push_back(t.defined() ? t.clone() : t);
  auto stack = with_tensors(sample, copies);
  p.call(sample.op, stack);
  p.expected = tensors_in(stack, true);
  // What returns nothing has written to its arguments.
  p.writes = p.expected.empty();
  if (p.writes) p.expected = copies;
  return p;
}

/// Runs the local op of a rank: localised arguments, the op instead, the scale.
inline std::vector<at::Tensor> run_local(const Proven& p, const OpCall& call,
                                         std::span<const Sharding> operands,
                                         std::span<const Sharding> results,
                                         std::vector<at::Tensor> locals) {
  const auto& schema = p.sample->op.schema();
  auto stack = with_tensors(*p.sample, locals);
  for (const auto& local : p.rule->localise) {
    for (size_t i = 0; i < schema.arguments().size(); ++i) {
      if (schema.arguments()[i].name() == local.name)
        stack[i] = to_ivalue(local.value(call, operands, results));
    }
  }
  if (p.rule->instead.empty()) {
    p.call(p.sample->op, stack);
  } else {
    const auto op = find_op(p.rule->instead);
    torch::jit::Stack other;
    for (const auto& a : op.schema().arguments()) {
      c10::IValue value = a.default_value() ? *a.default_value() : c10::IValue();
      for (size_t i = 0; i < schema.arguments().size(); ++i) {
        if (schema.arguments()[i].name() == a.name()) value = stack[i];
      }
      for (const auto& local : p.rule->localise) {
        if (local.name == a.name()) value = to_ivalue(local.value(call, operands, results));
      }
      other.push_back(value);
    }
    p.call(op, other);
    stack = std::move(other);
  }
  auto out = tensors_in(stack, true);
  if (p.writes) out = locals;
  if (p.rule->scale) {
    const auto factors = p.rule->scale(call, operands);
    for (size_t r = 0; r < out.size() && r < factors.size(); ++r) {
      if (factors[r] == 0) {
        out[r] = at::zeros_like(out[r]);
      } else if (factors[r] != 1) {
        out[r] = out[r] * factors[r];
      }
    }
  }
  return out;
}

/// Empty if a result is as near to what it should be as the proof asks.
inline std::string deviation(const Proven& p, const at::Tensor& got, const at::Tensor& want,
                             const std::vector<at::Tensor>& parts) {
  if (!p.roundings && alike(got, want)) return {};
  if (got.sizes() != want.sizes() || got.scalar_type() != want.scalar_type())
    return "is " + got.toString() + ", not " + want.toString();
  const double largest = largest_of(parts);
  const double rounding = rounding_of(want.scalar_type()) * largest;
  const at::Tensor have = got.to(at::kDouble), should = want.to(at::kDouble);
  if (p.roundings && at::allclose(have, should, 0, *p.roundings * rounding, true)) return {};
  std::ostringstream out;
  const double off = largest_of({have - should});
  out << "values differ by " << off << ", " << off / rounding << " roundings of "
      << want.scalar_type() << want.sizes() << " of parts up to " << largest;
  return out.str();
}

/// Orders by operand where they differ.
using Orders = std::vector<std::vector<int>>;

inline std::string disproof_or_throw(const Proven& p, const OpCall& call,
                                     const std::vector<std::vector<Placement>>& operand_placements,
                                     const std::vector<std::vector<Placement>>& results_of_row,
                                     const std::vector<int>& order, const Orders& orders = {}) {
  const auto order_of = [&](size_t o) { return orders.empty() ? order : orders[o]; };
  const DeviceMesh& mesh = call.mesh;
  const auto& result_placements = p.writes ? operand_placements : results_of_row;
  std::vector<std::vector<at::Tensor>> locals(static_cast<size_t>(mesh.size()));
  for (size_t o = 0; o < p.operands.size(); ++o) {
    std::vector<at::Tensor> parts(locals.size());
    if (p.operands[o].defined()) {
      parts = split(p.operands[o],
                    sharding_of(p.operands[o], mesh, operand_placements[o], order_of(o)));
    }
    for (size_t r = 0; r < locals.size(); ++r) locals[r].push_back(parts[r]);
  }
  std::vector<std::vector<at::Tensor>> results(p.expected.size());
  for (size_t r = 0; r < locals.size(); ++r) {
    const DeviceMesh mine = mesh.with_own_rank(mesh.ranks()[r]);
    std::vector<Sharding> operands, outs;
    for (size_t o = 0; o < p.operands.size(); ++o) {
      operands.push_back(p.operands[o].defined()
                             ? sharding_of(p.operands[o], mine, operand_placements[o], order_of(o))
                             : Sharding());
    }
    for (size_t i = 0; i < p.expected.size(); ++i) {
      outs.push_back(p.expected[i].defined() && i < result_placements.size()
                         ? sharding_of(p.expected[i], mine, result_placements[i],
                                       p.writes ? order_of(i) : order)
                         : Sharding());
    }
    try {
      auto made = run_local(p, call, operands, outs, locals[r]);
      for (size_t i = 0; i < results.size(); ++i)
        results[i].push_back(i < made.size() ? made[i] : at::Tensor());
    } catch (const c10::Error& e) {
      return "rank " + std::to_string(r) + " fails: " + e.what_without_backtrace();
    }
  }
  for (size_t i = 0; i < results.size(); ++i) {
    if (!p.expected[i].defined()) continue;
    if (i >= result_placements.size())
      return "the row places " + std::to_string(result_placements.size()) + " results";
    std::string error;
    at::Tensor got;
    try {
      got = combine(
          results[i],
          sharding_of(p.expected[i], mesh, result_placements[i], p.writes ? order_of(i) : order),
          error);
    } catch (const c10::Error& e) {
      error = std::string("cannot be combined: ") + e.what_without_backtrace();
    }
    if (error.empty()) error = deviation(p, got, p.expected[i], results[i]);
    if (!error.empty()) return "result " + std::to_string(i) + ": " + error;
  }
  return {};
}

/// Empty if the placements are right for this sample.
inline std::string disproof(const Proven& p, const OpCall& call,
                            const std::vector<std::vector<Placement>>& operands,
                            const std::vector<std::vector<Placement>>& results,
                            const std::vector<int>& order, const Orders& orders = {}) {
  try {
    return disproof_or_throw(p, call, operands, results, order, orders);
  } catch (const Error& e) {  // placements that no tensor can have
    return e.what();
  }
}

}  // namespace tessera::test
