#include "tessera/dtensor/ops/moved_operands.h"

#include <algorithm>

#include "tessera/dtensor/overlap.h"
#include "tessera/dtensor/policy.h"
#include "tessera/exec/redistribute.h"
#include "tessera/observe/call_site.h"

namespace tessera::dtensor {

MovedOperands::MovedOperands(const OpEntry& entry, const Stack& stack,
                             std::vector<Sharding> targets, std::vector<size_t> written)
    : entry_(entry), operands_(operands_of(entry, stack)) {
  decision_.operands = std::move(targets);
  decision_.write_back = std::move(written);
  for (size_t i = 0; i < operands_.size(); ++i) {
    const ShardedMeta* meta = operands_[i].sharded;
    decision_.moves |= meta != nullptr && meta->sharding() != decision_.operands[i];
  }
  check_policy(entry, decision_, stack);
}

at::Tensor MovedOperands::local(size_t i) const {
  const Operand& operand = operands_[i];
  if (!operand.tensor->defined()) return {};
  const Sharding& to = decision_.operands[i];
  const comm::CallSite site({.op = entry_.name, .implicit = true});
  if (operand.sharded == nullptr) {
    return exec::redistribute(*operand.tensor, as_replicated(*operand.tensor, to.mesh()), to,
                              {.may_alias = true});
  }
  return exec::redistribute(operand.sharded->local(), operand.sharded->sharding(), to,
                            {.may_alias = true});
}

void MovedOperands::write(size_t i, const at::Tensor& value) const {
  const Operand& operand = operands_[i];
  const Sharding& from = decision_.operands[i];
  const comm::CallSite site({.op = entry_.name, .implicit = true});
  const ShardedMeta* meta = operand.sharded;
  const Sharding to =
      meta != nullptr ? meta->sharding() : as_replicated(*operand.tensor, from.mesh());
  const at::Tensor& place = meta != nullptr ? meta->local() : *operand.tensor;
  copy_into(place, exec::redistribute(value, from, to, {.may_alias = true}));
}

bool all_on(const DeviceMesh& mesh, const OpEntry& entry, const Stack& stack) {
  return std::ranges::all_of(operands_of(entry, stack), [&](const Operand& operand) {
    if (!operand.tensor->defined()) return true;
    if (operand.sharded != nullptr) return operand.sharded->sharding().mesh() == mesh;
    return operand.tensor->numel() == 1 || ImplicitReplication::current();
  });
}

}  // namespace tessera::dtensor
