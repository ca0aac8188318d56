#include "tessera/dtensor/dispatch/decide/rule_args.h"

#include <limits>

#include "tessera/base/errors.h"
#include "tessera/dtensor/dispatch/op/operands.h"

namespace tessera::dtensor {
namespace {

rules::Arg tensor_arg(const at::Tensor& tensor, const DeviceMesh& mesh) {
  if (!tensor.defined()) return Sharding();
  const ShardedMeta* meta = sharded_meta(tensor);
  if (meta != nullptr && meta->sharding().mesh() == mesh) return meta->sharding();
  return as_replicated(tensor, mesh);  // plain, or from another mesh
}

/// The numbers of a call, in the order of its key.
class Numbers {
 public:
  Numbers(std::shared_ptr<rules::NumberQueries> log, std::vector<rules::NumberQuery>& all)
      : log_(std::move(log)), all_(all) {}

  /// Of a complex number, whose parts are two numbers of the key, rules only see that there is one:
  /// NaN, which equals nothing.
  rules::Arg next(const c10::IValue& value) {
    const auto recorded = [&](auto number) {
      const rules::Number out(number);
      return out.recorded(log_, add(out.type()));
    };
    if (value.isBool()) return recorded(value.toBool());
    if (value.isInt()) return recorded(value.toInt());
    if (value.isDouble()) return recorded(value.toDouble());
    if (value.isComplexDouble()) {
      add(rules::NumberType::floating);
      add(rules::NumberType::floating);
      return rules::Number(std::numeric_limits<double>::quiet_NaN());
    }
    return std::monostate();
  }

 private:
  uint32_t add(rules::NumberType type) {
    const auto place = static_cast<uint32_t>(all_.size());
    all_.push_back({place, type, true, 0});
    return place;
  }

  std::shared_ptr<rules::NumberQueries> log_;
  std::vector<rules::NumberQuery>& all_;
};

rules::Arg rule_arg(ArgKind kind, const c10::IValue& value, const DeviceMesh& mesh,
                    Numbers& numbers) {
  if (kind == ArgKind::tensor) {
    return value.isTensor() ? tensor_arg(value.toTensor(), mesh) : rules::Arg(Sharding());
  }
  if (value.isNone()) return std::monostate();
  switch (kind) {
    case ArgKind::tensor_list: {
      std::vector<Sharding> list;
      for (const auto& item : value.toListRef()) {
        list.push_back(std::get<Sharding>(item.isTensor() ? tensor_arg(item.toTensor(), mesh)
                                                          : rules::Arg(Sharding())));
      }
      return list;
    }
    case ArgKind::integer_list: {
      if (value.isIntList()) return value.toIntVector();
      std::vector<int64_t> ints;
      std::vector<bool> bools;
      for (const auto& item : value.toListRef()) {
        if (item.isBool()) bools.push_back(item.toBool());
        if (item.isInt()) ints.push_back(item.toInt());
      }
      if (!bools.empty()) return bools;
      return ints;
    }
    case ArgKind::scalar_list: {
      std::vector<rules::Number> out;
      bool real = true;
      for (const auto& item : value.toListRef()) {
        const rules::Arg number = numbers.next(item);
        real = real && std::holds_alternative<rules::Number>(number);
        if (real) out.push_back(std::get<rules::Number>(number));
      }
      if (!real) return std::monostate();
      return out;
    }
    case ArgKind::scalar:
      return numbers.next(value);
    case ArgKind::integer:
      if (value.isBool()) return value.toBool();
      if (value.isInt()) return value.toInt();
      return std::monostate();
    case ArgKind::text:
      return std::string(value.toStringView());
    default:
      return std::monostate();
  }
}

}  // namespace

RuleArgs::RuleArgs(const OpEntry& entry, const c10::OperatorHandle& op,
                   const torch::jit::Stack& stack, const DeviceMesh& mesh)
    : asked_(std::make_shared<rules::NumberQueries>()) {
  const size_t base = stack.size() - entry.args.size();
  Numbers numbers(asked_, all_numbers_);
  for (size_t i = 0; i < entry.args.size(); ++i) {
    list_.push_back({op.schema().arguments()[i].name(),
                     rule_arg(entry.args[i], stack[base + i], mesh, numbers)});
  }
}

void RuleArgs::ask_for_all_numbers() const {
  for (const auto& number : all_numbers_) asked_->add(number);
}

c10::IValue to_ivalue(const rules::Arg& arg) {
  if (const auto* ints = std::get_if<std::vector<int64_t>>(&arg)) return c10::IValue(*ints);
  if (const auto* i = std::get_if<int64_t>(&arg)) return c10::IValue(*i);
  if (const auto* b = std::get_if<bool>(&arg)) return c10::IValue(*b);
  if (const auto* n = std::get_if<rules::Number>(&arg)) {
    if (n->type() == rules::NumberType::boolean) return c10::IValue(n->to_bool());
    if (n->type() == rules::NumberType::integer) return c10::IValue(n->to_int());
    return c10::IValue(n->to_double());
  }
  ensure(std::holds_alternative<std::monostate>(arg), "a rule localises to an unknown kind");
  return c10::IValue();
}

}  // namespace tessera::dtensor
