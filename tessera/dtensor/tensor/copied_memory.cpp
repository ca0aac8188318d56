#include "tessera/dtensor/tensor/copied_memory.h"

#include <c10/core/Allocator.h>

#include <atomic>
#include <mutex>
#include <unordered_map>
#include <vector>

namespace tessera::dtensor {
namespace {

using WeakImpl = c10::weak_intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl>;
using WeakStorage = c10::weak_intrusive_ptr<c10::StorageImpl>;

/// Weak references keep the addresses from being reused.
struct CopiedMemory {
  WeakStorage storage;
  std::vector<WeakImpl> locals;
};

struct CopiedMemories {
  std::mutex mutex;
  std::unordered_map<const c10::StorageImpl*, CopiedMemory> of;
  std::atomic<size_t> count{0};  ///< of `of`, to be read without the lock
  size_t prune_at = 64;
};

CopiedMemories& copied_memories() {
  static auto* const instance = new CopiedMemories;  // tensors may be freed at process exit
  return *instance;
}

}  // namespace

void note_copied(const at::Tensor& local) {
  if (!local.has_storage()) return;
  CopiedMemories& all = copied_memories();
  const std::lock_guard lock(all.mutex);
  if (all.of.size() >= all.prune_at) {
    std::erase_if(all.of, [](const auto& entry) { return entry.second.storage.expired(); });
    all.prune_at = 2 * all.of.size() + 64;
  }
  const c10::StorageImpl* storage = local.storage().unsafeGetStorageImpl();
  auto& locals = all.of.try_emplace(storage, CopiedMemory{local.storage().getWeakStorageImpl(), {}})
                     .first->second.locals;
  all.count = all.of.size();
  std::erase_if(locals, [](const WeakImpl& weak) { return weak.expired(); });
  const auto is_local = [&](const WeakImpl& weak) {
    return weak._unsafe_get_target() == local.unsafeGetTensorImpl();
  };
  if (std::ranges::none_of(locals, is_local)) locals.emplace_back(local.getIntrusivePtr());
}

void count_write_to_copied(const at::Tensor& written) {
  CopiedMemories& all = copied_memories();
  if (all.count.load(std::memory_order_relaxed) == 0 || !written.has_storage()) return;
  const std::lock_guard lock(all.mutex);
  const auto at = all.of.find(written.storage().unsafeGetStorageImpl());
  if (at == all.of.end()) return;
  for (const WeakImpl& weak : at->second.locals) {
    const auto local = weak.lock();
    if (local.defined() && !local->is_inference()) local->bump_version();
  }
}

bool is_allocated_by_torch(const at::Tensor& local) {
  if (!local.has_storage()) return true;
  const c10::DataPtr& data = local.storage().data_ptr();
  return data.get() == nullptr ||
         data.get_deleter() == c10::GetAllocator(local.device().type())->raw_deleter();
}

}  // namespace tessera::dtensor
