#include <ATen/MemoryOverlap.h>
#include <ATen/ops/empty.h>

#include <unordered_map>
#include <utility>

#include "tessera/base/errors.h"
#include "tessera/dtensor/dispatch/dispatch.h"
#include "tessera/dtensor/tensor/overlap.h"
#include "tessera/exec/redistribute.h"
#include "tessera/observe/call_site.h"

/// An op may have to write to a tensor whose placements it cannot compute with: the sigmoid of a
/// partial sum, a product into an out= tensor with another sharding. It then writes to a temporary
/// tensor, and the values are redistributed back. The caller's tensor keeps its placements, and
/// views of it stay valid. Where its elements share memory, those of the temporary do
/// (dtensor/tensor/overlap.h).
namespace tessera::dtensor {

at::Tensor borrow_written(const OpEntry& entry, const ShardedMeta& operand, const Sharding& as,
                          bool is_out) {
  const at::Tensor& local = operand.local();
  if (is_out) {
    const auto shape = as.local_shape();
    return at::empty(at::IntArrayRef(shape.data(), shape.size()), local.options());
  }
  const comm::CallSite site({.op = entry.name, .implicit = true});
  const bool shares = shares_elements(operand.sharding());
  const at::Tensor moved = exec::redistribute(local, operand.sharding(), as).contiguous();
  if (!shares || !as.mesh().contains_me()) return moved;
  return copy_sharing_elements(moved, as, local, operand.sharding());
}

void check_written_once(const OpEntry& entry, std::span<const at::Tensor> originals) {
  std::unordered_map<const void*, size_t> seen;  // by storage: the last one that has it
  for (size_t i = 0; i < originals.size(); ++i) {
    const at::Tensor& local = sharded_meta(originals[i])->local();
    const auto [at, is_new] = seen.emplace(local.storage().unsafeGetStorageImpl(), i);
    if (is_new) continue;
    const at::Tensor& other = sharded_meta(originals[std::exchange(at->second, i)])->local();
    const auto overlap = at::get_overlap_status(other, local);
    if (overlap != at::MemOverlapStatus::Full && overlap != at::MemOverlapStatus::Partial) continue;
    throw NotSupported(join_text(
        entry.name, " writes to ", sharded_meta(originals[i])->sharding(),
        " twice in one call, each time through a copy with other placements, so one of the writes "
        "would be lost; redistribute it first, or give it once"));
  }
}

void write_back(const OpEntry& entry, const Decision& decision,
                std::span<const at::Tensor> originals, std::span<const at::Tensor> borrowed) {
  for (size_t i = 0; i < originals.size(); ++i) {
    const ShardedMeta* meta = sharded_meta(originals[i]);
    const Sharding& from = decision.operands[decision.write_back[i]];
    require(
        !from.mesh().contains_me() || std::ranges::equal(borrowed[i].sizes(), from.local_shape()),
        entry.name, " changed the shape of ", meta->sharding(), " from ",
        shape_text(from.local_shape()), " to ", shape_text(borrowed[i].sizes()),
        " on this rank; a sharded tensor cannot be resized in place");
    const comm::CallSite site({.op = entry.name, .implicit = true});
    copy_into(meta->local(),
              exec::redistribute(borrowed[i], from, meta->sharding(), {.may_alias = true}));
  }
}

}  // namespace tessera::dtensor
