#include "tessera/rules/op_call.h"

namespace tessera::rules {

const Arg* OpCall::find(std::string_view name) const {
  for (const auto& arg : args) {
    if (arg.name == name) return &arg.value;
  }
  return nullptr;
}

int64_t OpCall::int_or(std::string_view name, int64_t otherwise) const {
  const Arg* arg = find(name);
  if (arg == nullptr) return otherwise;
  if (const auto* i = std::get_if<int64_t>(arg)) return *i;
  if (const auto* b = std::get_if<bool>(arg)) return *b ? 1 : 0;
  if (const auto* n = std::get_if<Number>(arg); n != nullptr && n->type() != NumberType::floating) {
    return n->to_int();
  }
  return otherwise;
}

bool OpCall::bool_or(std::string_view name, bool otherwise) const {
  return int_or(name, otherwise ? 1 : 0) != 0;
}

std::vector<int64_t> OpCall::ints(std::string_view name) const {
  const Arg* arg = find(name);
  if (arg == nullptr) return {};
  if (const auto* list = std::get_if<std::vector<int64_t>>(arg)) return *list;
  if (const auto* i = std::get_if<int64_t>(arg)) return {*i};
  return {};
}

std::vector<Sharding> OpCall::operands() const {
  std::vector<Sharding> out;
  for (const auto& arg : args) {
    if (const auto* one = std::get_if<Sharding>(&arg.value)) out.push_back(*one);
    if (const auto* list = std::get_if<std::vector<Sharding>>(&arg.value)) {
      out.insert(out.end(), list->begin(), list->end());
    }
  }
  return out;
}

}  // namespace tessera::rules
