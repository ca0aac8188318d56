#include "tessera/dtensor/gathered_views.h"

#include <ATen/ops/slice.h>
#include <c10/core/WrapDimMinimal.h>

#include <algorithm>
#include <map>
#include <mutex>
#include <set>
#include <utility>

#include "tessera/base/errors.h"
#include "tessera/comm/call_site.h"
#include "tessera/exec/redistribute.h"

namespace tessera::dtensor {

std::atomic<int64_t> live_view_origins{0};

namespace {

struct Copy {
  const ViewOrigin* origin;
  bool stale = false;  ///< its base was written to
};

/// All copies, by the memory of their base on this rank, which true views of the base share.
struct Registry {
  std::mutex mutex;
  std::multimap<const void*, Copy> copies;
};

Registry& registry() {
  static auto* instance = new Registry();  // tensors may outlive static objects
  return *instance;
}

const void* memory_of(const at::Tensor& local) {
  return local.defined() && local.has_storage() ? local.storage().unsafeGetStorageImpl() : nullptr;
}

const void* memory_of_base(const ViewOrigin& origin) {
  return memory_of(sharded_meta(origin.base)->local());
}

using Origins = std::set<const ViewOrigin*>;

/// All copies of this memory are out of date, but for these.
void mark_stale(const void* memory, const Origins& but) {
  std::lock_guard lock(registry().mutex);
  const auto [first, last] = registry().copies.equal_range(memory);
  for (auto it = first; it != last; ++it) {
    if (!but.contains(it->second.origin)) it->second.stale = true;
  }
}

enum class Ask : uint8_t { look, clear };

/// Whether the copy is out of date; `clear`: it counts as current from now on.
bool is_stale(const ViewOrigin& origin, Ask ask = Ask::look) {
  std::lock_guard lock(registry().mutex);
  const auto [first, last] = registry().copies.equal_range(memory_of_base(origin));
  const auto it =
      std::find_if(first, last, [&](const auto& at) { return at.second.origin == &origin; });
  if (it == last) return false;
  return ask == Ask::look ? it->second.stale : std::exchange(it->second.stale, false);
}

void refresh(const ViewOrigin& origin) {
  const ShardedMeta& base = *sharded_meta(origin.base);
  if (base.origin() != nullptr) refresh(*base.origin());
  if (!origin.gathered.defined() && is_stale(origin)) {
    throw NotSupported(
        join_text("a view of ", base.sharding(),
                  " that had to be copied is read after a write to the tensor, which the copy does "
                  "not see; take the view again after the write"));
  }
  if (!is_stale(origin, Ask::clear)) return;
  const at::Tensor now =
      exec::redistribute(base.local(), base.sharding(), origin.as, {.may_alias = true});
  if (now.is_alias_of(origin.gathered)) return;
  origin.gathered.copy_(now);
  mark_stale(memory_of(origin.gathered), {});
}

/// The tensor is about to be written to: every other copy of it or of its bases is out of date.
void note_write(const ShardedMeta& written) {
  Origins own;
  for (const ShardedMeta* meta = &written; meta->origin() != nullptr;
       meta = sharded_meta(meta->origin()->base)) {
    own.insert(meta->origin().get());
  }
  mark_stale(memory_of(written.local()), own);
  for (const ViewOrigin* origin : own) mark_stale(memory_of_base(*origin), own);
}

bool entry_writes_lists(const OpEntry& entry) {
  return std::ranges::any_of(entry.written, [&](int arg) {
    return entry.args[static_cast<size_t>(arg)] == ArgKind::tensor_list;
  });
}

/// Whether the results of a view op are views of `local`.
bool share_memory(std::span<const c10::IValue> results, const at::Tensor& local) {
  return std::ranges::all_of(results, [&](const c10::IValue& result) {
    if (result.isTensorList()) {
      const auto list = result.toTensorVector();
      return std::ranges::all_of(list, [&](const at::Tensor& item) {
        return sharded_meta(item)->local().is_alias_of(local);
      });
    }
    const ShardedMeta* meta = result.isTensor() ? sharded_meta(result.toTensor()) : nullptr;
    return meta != nullptr && meta->local().is_alias_of(local);
  });
}

void set_origin(const c10::IValue& result, const std::shared_ptr<const ViewOrigin>& origin) {
  if (result.isTensorList()) {
    for (const at::Tensor& tensor : result.toTensorVector()) set_origin(tensor, origin);
    return;
  }
  if (!result.isTensor() || sharded_meta(result.toTensor()) == nullptr) return;
  mark_copy_of_view(result.toTensor(), origin);
}

}  // namespace

std::shared_ptr<const ViewOrigin> make_origin(at::Tensor base, at::Tensor gathered, Sharding as) {
  const auto* made = new ViewOrigin{std::move(base), std::move(gathered), std::move(as)};
  const void* memory = memory_of_base(*made);
  live_view_origins.fetch_add(1, std::memory_order_relaxed);
  {
    std::lock_guard lock(registry().mutex);
    registry().copies.emplace(memory, Copy{made});
  }
  return {made, [memory](const ViewOrigin* origin) {
            live_view_origins.fetch_sub(1, std::memory_order_relaxed);
            {
              std::lock_guard lock(registry().mutex);
              auto it = registry().copies.lower_bound(memory);
              while (it->second.origin != origin) ++it;
              registry().copies.erase(it);
            }
            delete origin;
          }};
}

void refresh(const at::Tensor& view) {
  const ShardedMeta* meta = sharded_meta(view);
  if (meta == nullptr || meta->origin() == nullptr) return;
  const comm::CallSite site({.op = "a view of a tensor that was written to", .implicit = true});
  refresh(*meta->origin());
}

GatheredViewsOfCall::GatheredViewsOfCall(const OpEntry& entry, const Stack& stack) {
  const auto operands = operands_of(entry, stack);
  const comm::CallSite site({.op = entry.name, .implicit = true});
  for (const Operand& operand : operands) {
    if (operand.sharded != nullptr && operand.sharded->origin() != nullptr) {
      refresh(*operand.sharded->origin());
    }
  }
  for (const Operand& operand : operands) {
    if (operand.sharded == nullptr || (!operand.written && !operand.hidden)) continue;
    if (!operand.sharded->local().defined()) continue;  // a lazy view: its base is written to
    check_writable(entry, *operand.tensor);
    note_write(*operand.sharded);
    const auto& origin = operand.sharded->origin();
    const bool moves_already = std::ranges::any_of(
        written_, [&](const at::Tensor& view) { return sharded_meta(view)->origin() == origin; });
    if (origin != nullptr && !moves_already) written_.push_back(*operand.tensor);
  }
  if (written_.size() < 2 && !entry_writes_lists(entry)) return;
  for (const at::Tensor& view : written_) {
    // Written by another operand of this call, before or after: the copy has not seen it.
    const ViewOrigin& origin = *sharded_meta(view)->origin();
    if (!is_stale(origin)) continue;
    throw NotSupported(join_text(
        entry.name,
        " writes to a view of a sharded tensor that had to be gathered, and to the "
        "tensor or another such view of it, in one call; write to them in calls of their own"));
  }
}

void GatheredViewsOfCall::move_writes(const OpEntry& entry) const {
  for (const at::Tensor& view : written_) write_through(entry, view);
}

void write_through(const OpEntry& entry, const at::Tensor& view) {
  const ShardedMeta* meta = sharded_meta(view);
  const comm::CallSite site({.op = entry.name, .implicit = true});
  while (meta->origin() != nullptr) {
    const ViewOrigin& origin = *meta->origin();
    meta = sharded_meta(origin.base);
    meta->local().copy_(
        exec::redistribute(origin.gathered, origin.as, meta->sharding(), {.may_alias = true}));
  }
}

void note_origin(const Decision& decision, const at::Tensor& base, const at::Tensor& local,
                 std::span<const c10::IValue> results) {
  std::shared_ptr<const ViewOrigin> origin;
  const bool shares = decision.operands[0].defined() && share_memory(results, local);
  if (!decision.moves) {
    origin = sharded_meta(base)->origin();
  } else {
    origin = make_origin(base, shares ? local : at::Tensor(), decision.operands[0]);
  }
  for (const auto& result : results) set_origin(result, origin);
}

void check_writable(const OpEntry& entry, const c10::IValue& value) {
  const ShardedMeta* meta = value.isTensor() ? sharded_meta(value.toTensor()) : nullptr;
  if (meta == nullptr || !meta->is_copy_of_view()) return;
  require(meta->origin() != nullptr && meta->origin()->gathered.defined(), entry.name,
          " writes to a view of a sharded tensor that had to be copied, so the write would be "
          "lost; redistribute the tensor before taking the view, or write to a slice of it");
}

/// select.int(self, dim, index)
bool select_of_slice(const OpEntry& entry, const c10::OperatorHandle& op, Stack& stack) {
  const size_t base = stack.size() - entry.args.size();
  const at::Tensor self = stack[base].toTensor();
  if (self.dim() == 0) return false;
  const int64_t dim = c10::maybe_wrap_dim(stack[base + 1].toInt(), self.dim());
  const int64_t size = self.size(dim);
  int64_t index = stack[base + 2].toInt();
  index += index < 0 ? size : 0;
  const Sharding& from = sharded_meta(self)->sharding();
  if (size < 2 || index < 0 || index >= size || from.axes_of_dim(static_cast<int>(dim)).empty()) {
    return false;
  }
  stack[base] = at::slice(self, dim, index, index + 1);
  stack[base + 2] = 0;
  dispatch(entry, op, stack);
  return true;
}

}  // namespace tessera::dtensor
