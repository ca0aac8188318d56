#include "tessera/dtensor/dispatch/aliased_statistics.h"

#include <algorithm>
#include <vector>

#include "tessera/base/errors.h"
#include "tessera/dtensor/tensor/overlap.h"

namespace tessera::dtensor {
namespace {

/// The memory of a tensor on this rank, and of the bases that writes to it are forwarded to.
std::vector<const void*> memory_of(const Operand& operand) {
  std::vector<const void*> out;
  const auto add = [&](const at::Tensor& local) {
    if (local.defined() && local.has_storage()) {
      out.push_back(local.storage().unsafeGetStorageImpl());
    }
  };
  if (operand.sharded == nullptr) add(*operand.tensor);
  for (const ShardedMeta* meta = operand.sharded; meta != nullptr;) {
    add(meta->local());
    meta = meta->origin() != nullptr ? sharded_meta(meta->origin()->base) : nullptr;
  }
  return out;
}

bool share_memory(const Operand& a, const Operand& b) {
  const auto theirs = memory_of(b);
  return std::ranges::any_of(memory_of(a), [&](const void* memory) {
    return std::ranges::find(theirs, memory) != theirs.end();
  });
}

/// Whether the kernel reads and writes the tensor's own memory, as libtorch's does. A gathered view
/// is replicated, but is a copy, and a write to it reaches its base after the kernel.
bool is_here(const Operand& operand) {
  const ShardedMeta* meta = operand.sharded;
  return meta == nullptr || (meta->sharding().is_replicated() && meta->origin() == nullptr);
}

}  // namespace

void refuse_aliased_statistics(const OpEntry& entry, const Stack& stack) {
  const auto operands = operands_of(entry, stack);
  for (const Operand& written : operands) {
    if (!written.hidden || written.sharded == nullptr) continue;
    if (!shares_elements(written.sharded->sharding())) continue;
    throw NotSupported(join_text(
        entry.name, " updates statistics whose elements share memory (", operands_text(operands),
        "), so the order of writes decides the result; give it a copy (clone()) of them"));
  }
  if (std::ranges::all_of(operands, is_here)) return;
  for (const Operand& written : operands) {
    if (!written.hidden || !written.tensor->defined()) continue;
    for (const Operand& other : operands) {
      if (&other == &written || !other.tensor->defined() || !share_memory(written, other)) continue;
      throw NotSupported(join_text(
          entry.name, " updates statistics that share memory with another of its tensors (",
          operands_text(operands),
          "), so the order of reads and writes decides the result; give "
          "it a copy (clone()) of one of them"));
    }
  }
}

}  // namespace tessera::dtensor
