#include "tessera/dtensor/dispatch/decide/sequential_random_ops.h"

#include <ATen/core/enum_tag.h>

#include "tessera/comm/rank_generator.h"
#include "tessera/dtensor/random/same_generator.h"

namespace tessera::dtensor {

namespace {

std::optional<bool> drops(const OpEntry& entry, const c10::OperatorHandle& op, const Stack& stack) {
  const size_t base = stack.size() - entry.args.size();
  const auto& arguments = op.schema().arguments();
  for (size_t i = 0; i < arguments.size(); ++i) {
    if (arguments[i].name() == "dropout_p") return stack[base + i].toDouble() > 0;
  }
  return std::nullopt;
}

}  // namespace

bool draws_in_order(const c10::OperatorHandle& op, std::optional<bool> drops) {
  return drops ? *drops : op.hasTag(at::Tag::nondeterministic_seeded);
}

void check_drawing(const OpEntry& entry, const c10::OperatorHandle& op, const DeviceMesh& mesh,
                   const Stack& stack) {
  if (!draws_in_order(op, drops(entry, op, stack))) return;
  const size_t base = stack.size() - entry.args.size();
  for (size_t i = 0; i < entry.args.size(); ++i) {
    const c10::IValue& value = stack[base + i];
    if (entry.args[i] == ArgKind::generator && !value.isNone()) {
      return check_same_generator(value.toGenerator(), mesh);
    }
  }
  for (const auto& operand : operands_of(entry, stack)) {
    if (operand.sharded == nullptr) continue;
    return check_same_generator(comm::default_generator(operand.tensor->device()), mesh);
  }
}

}  // namespace tessera::dtensor
