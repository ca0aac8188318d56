#include "tessera/dtensor/tensor/kept_copies.h"

#include <c10/core/GradMode.h>
#include <torch/csrc/autograd/function.h>

#include <atomic>
#include <deque>
#include <mutex>
#include <unordered_map>
#include <utility>
#include <vector>

#include "tessera/dtensor/tensor/sharded_tensor.h"
#include "tessera/dtensor/tensor/value_stamp.h"
#include "tessera/exec/reuse_mark.h"
#include "tessera/mesh/per_mesh.h"

namespace tessera::dtensor {
namespace {

using WeakImpl = c10::weak_intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl>;

/// A copy. Not owned if its tensor is a leaf: the copy's autograd node refers to the leaf, so
/// neither would ever be freed. It then lasts as long as the ops that saved it.
struct KeptCopy {
  KeptCopy(const at::Tensor& tensor, const Sharding& to, const at::Tensor& copy)
      : sharding(to), recorded(records_uses(tensor)), weak(copy.getIntrusivePtr()) {
    if (recorded) node = tensor.grad_fn().get();
    if (!recorded || !tensor.is_leaf()) owned = copy;
  }

  at::Tensor get() const { return owned.defined() ? owned : at::Tensor(weak.lock()); }

  Sharding sharding;
  bool recorded;  // by autograd
  /// What a recorded one's gradient goes to, kept by the copy's node; nullptr for that of a leaf.
  const torch::autograd::Node* node = nullptr;
  at::Tensor owned;
  WeakImpl weak;
};

struct Copies {
  explicit Copies(WeakImpl tensor) : of(std::move(tensor)) {}

  WeakImpl of;  // makes the tensor call drop_copies when it is freed
  uint64_t id = 0;
  ValueStamp stamp;
  std::vector<KeptCopy> made;
};

/// A tensor may be freed by another thread than the one that made its copies.
struct CopyTable {
  std::mutex mutex;
  std::unordered_map<const c10::TensorImpl*, Copies> tensors;
  std::atomic<size_t> count{0};
};

CopyTable& copy_table() {
  static auto* instance = new CopyTable();  // tensors may be freed during process exit
  return *instance;
}

/// In the order in which they were made, those of freed tensors included: what is kept must depend
/// on the program's ops over these axes of the mesh alone, because all ranks along them must find
/// the same copies. An address may be reused, so ids distinguish tensors.
using KeptTensors = std::deque<std::pair<const c10::TensorImpl*, uint64_t>>;
thread_local PerMesh<KeptTensors> kept_by_thread;

void drop_if_same(const c10::TensorImpl* tensor, uint64_t id) {
  CopyTable& table = copy_table();
  decltype(table.tensors)::node_type dropped;  // freed after the lock
  const std::lock_guard lock(table.mutex);
  const auto at = table.tensors.find(tensor);
  if (at == table.tensors.end() || at->second.id != id) return;
  dropped = table.tensors.extract(at);
  table.count = table.tensors.size();
}

/// Whether autograd treats a use of the copy as a use of the tensor. detach_() counts as no write,
/// and gives the tensor another node.
bool stands_for(const KeptCopy& copy, const at::Tensor& tensor) {
  if (!c10::GradMode::is_enabled()) return true;
  if (!copy.recorded) return !tensor.requires_grad();
  return tensor.requires_grad() && tensor.grad_fn().get() == copy.node;
}

template <class Wanted>
at::Tensor find_copy(const at::Tensor& tensor, const Wanted& wanted) {
  CopyTable& table = copy_table();
  if (table.count.load(std::memory_order_relaxed) == 0 || !can_keep_copies(tensor)) return {};
  const std::lock_guard lock(table.mutex);
  const auto at = table.tensors.find(tensor.unsafeGetTensorImpl());
  if (at == table.tensors.end() || at->second.stamp != value_stamp(tensor)) return {};
  for (const KeptCopy& copy : at->second.made) {
    if (!wanted(copy)) continue;
    at::Tensor found = copy.get();
    if (!found.defined()) continue;
    const Sharding& from = sharded_meta(tensor)->sharding();
    if (copy.sharding != from) exec::count_reuse(from, copy.sharding);
    return found;
  }
  return {};
}

void keep_copy(const at::Tensor& tensor, const Sharding& to, const at::Tensor& copy) {
  CopyTable& table = copy_table();
  const c10::TensorImpl* impl = tensor.unsafeGetTensorImpl();
  decltype(Copies::made) outdated;  // freed after the lock: freeing a tensor may call drop_copies
  static std::atomic<uint64_t> next_id{1};
  uint64_t new_id = 0;
  KeptCopy made(tensor, to, copy);  // before the lock: it asks autograd, which may run ops
  note_copied(sharded_meta(tensor)->local());
  {
    const std::lock_guard lock(table.mutex);
    auto [at, inserted] = table.tensors.try_emplace(impl, WeakImpl(tensor.getIntrusivePtr()));
    if (inserted) {
      at->second.id = new_id = next_id.fetch_add(1);
    } else if (at->second.stamp != value_stamp(tensor)) {
      outdated.swap(at->second.made);
    }
    at->second.stamp = value_stamp(tensor);
    at->second.made.push_back(std::move(made));
    table.count = table.tensors.size();
  }
  if (new_id == 0) return;
  KeptTensors& kept =
      kept_by_thread.of(to.mesh(), exec::moved_axes(sharded_meta(tensor)->sharding(), to));
  kept.emplace_back(impl, new_id);
  while (kept.size() > kMostTensors) {
    const auto [oldest, id] = kept.front();
    kept.pop_front();
    drop_if_same(oldest, id);
  }
}

}  // namespace

bool can_keep_copies(const at::Tensor& tensor) {
  const c10::TensorImpl& impl = *tensor.unsafeGetTensorImpl();
  return typeid(impl) == typeid(ShardedImpl) && counts_writes(tensor);
}

at::Tensor find_redistributed(const at::Tensor& tensor, const Sharding& to) {
  return find_copy(tensor, [&](const KeptCopy& copy) {
    return copy.sharding == to && stands_for(copy, tensor);
  });
}

at::Tensor find_unrecorded(const at::Tensor& tensor, const Sharding& to) {
  return find_copy(tensor,
                   [&](const KeptCopy& copy) { return copy.sharding == to && !copy.recorded; });
}

void keep_redistributed(const at::Tensor& tensor, const Sharding& to, const at::Tensor& copy) {
  if (can_keep_copies(tensor) && !copy.is_inference()) keep_copy(tensor, to, copy);
}

at::Tensor find_reduced(const at::Tensor& tensor) {
  return find_copy(tensor, [&](const KeptCopy& copy) {
    return !copy.sharding.has_partial() && stands_for(copy, tensor);
  });
}

std::optional<Sharding> unrecorded_reduction(const at::Tensor& tensor) {
  CopyTable& table = copy_table();
  if (table.count.load(std::memory_order_relaxed) == 0 || !can_keep_copies(tensor)) return {};
  const std::lock_guard lock(table.mutex);
  const auto at = table.tensors.find(tensor.unsafeGetTensorImpl());
  if (at == table.tensors.end() || at->second.stamp != value_stamp(tensor)) return {};
  for (const KeptCopy& copy : at->second.made) {
    if (!copy.recorded && !copy.sharding.has_partial()) return copy.sharding;
  }
  return {};
}

void drop_copies(const c10::TensorImpl* tensor) noexcept {
  CopyTable& table = copy_table();
  if (table.count.load(std::memory_order_relaxed) == 0) return;
  decltype(table.tensors)::node_type dropped;  // freed after the lock
  const std::lock_guard lock(table.mutex);     // released first
  dropped = table.tensors.extract(tensor);
  table.count = table.tensors.size();
}

size_t tensors_with_copies() { return copy_table().count.load(std::memory_order_relaxed); }

}  // namespace tessera::dtensor
