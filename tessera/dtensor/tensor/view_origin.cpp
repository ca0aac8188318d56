#include "tessera/dtensor/tensor/view_origin.h"

#include <ATen/ops/conj_physical.h>
#include <ATen/ops/neg.h>

#include <algorithm>
#include <map>
#include <mutex>
#include <set>
#include <utility>

#include "tessera/base/errors.h"
#include "tessera/dtensor/tensor/overlap.h"
#include "tessera/exec/redistribute.h"
#include "tessera/observe/call_site.h"

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
  static auto* instance = new Registry();  // tensors may outlive static destruction
  return *instance;
}

const void* memory_of(const at::Tensor& local) {
  return local.defined() && local.has_storage() ? local.storage().unsafeGetStorageImpl() : nullptr;
}

const void* memory_of_base(const ViewOrigin& origin) {
  return memory_of(sharded_meta(origin.base)->local());
}

using Origins = std::set<const ViewOrigin*>;

/// Marks all copies of this memory as stale, except `but`.
void mark_stale(const void* memory, const Origins& but) {
  std::lock_guard lock(registry().mutex);
  const auto [first, last] = registry().copies.equal_range(memory);
  for (auto it = first; it != last; ++it) {
    if (!but.contains(it->second.origin)) it->second.stale = true;
  }
}

enum class Ask : uint8_t { look, clear };

/// Whether the copy is stale; `clear` also marks it as current.
bool ask_stale(const ViewOrigin& origin, Ask ask) {
  std::lock_guard lock(registry().mutex);
  const auto [first, last] = registry().copies.equal_range(memory_of_base(origin));
  const auto it =
      std::find_if(first, last, [&](const auto& at) { return at.second.origin == &origin; });
  if (it == last) return false;
  return ask == Ask::look ? it->second.stale : std::exchange(it->second.stale, false);
}

/// The base as it is now. transpose_() and similar ops change the shape of the caller's tensor, but
/// not of what its views refer to.
at::Tensor alias_of(const at::Tensor& base) {
  const c10::TensorImpl& impl = *base.unsafeGetTensorImpl();
  return at::Tensor(impl.shallow_copy_and_detach(impl.version_counter(),
                                                 /*allow_tensor_metadata_change=*/false));
}

}  // namespace

bool is_stale(const ViewOrigin& origin) { return ask_stale(origin, Ask::look); }

void refresh(const ViewOrigin& origin) {
  const ShardedMeta& base = *sharded_meta(origin.base);
  if (base.origin() != nullptr) refresh(*base.origin());
  if (!origin.gathered.defined() && is_stale(origin)) {
    throw NotSupported(
        join_text("a view of ", base.sharding(),
                  " that had to be copied is read after a write to the tensor, which the copy does "
                  "not see; take the view again after the write"));
  }
  if (!ask_stale(origin, Ask::clear)) return;
  const at::Tensor now =
      exec::redistribute(base.local(), base.sharding(), origin.as, {.may_alias = true});
  if (now.is_alias_of(origin.gathered)) return;
  copy_into(origin.gathered, computed(origin.value, now));
  mark_stale(memory_of(origin.gathered), {});
}

at::Tensor computed(ViewValue value, const at::Tensor& from) {
  switch (value) {
    case ViewValue::same:
      return from;
    case ViewValue::conjugate:
      return at::conj_physical(from);
    case ViewValue::negative:
      return at::neg(from);
  }
  return from;
}

void note_write(const ShardedMeta& written) {
  Origins own;
  for (const ShardedMeta* meta = &written; meta->origin() != nullptr;
       meta = sharded_meta(meta->origin()->base)) {
    own.insert(meta->origin().get());
  }
  mark_stale(memory_of(written.local()), own);
  for (const ViewOrigin* origin : own) mark_stale(memory_of_base(*origin), own);
}

std::shared_ptr<const ViewOrigin> make_origin(const at::Tensor& base, at::Tensor gathered,
                                              Sharding as, ViewValue value) {
  const auto* made = new ViewOrigin{alias_of(base), std::move(gathered), std::move(as), value};
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

}  // namespace tessera::dtensor
