#include "tessera/dtensor/tensor/sharded_tensor.h"

#include <ATen/ops/empty_strided.h>
#include <c10/core/CPUAllocator.h>
#include <c10/core/DispatchKeySet.h>
#include <c10/core/InferenceMode.h>
#include <c10/core/StorageImpl.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstddef>
#include <mutex>
#include <new>
#include <optional>
#include <vector>

#include "tessera/base/errors.h"
#include "tessera/base/text.h"
#include "tessera/comm/world.h"
#include "tessera/dtensor/tensor/kept_copies.h"
#include "tessera/dtensor/tensor/kept_gathers.h"
#include "tessera/dtensor/tensor/layout.h"
#include "tessera/dtensor/tensor/lazy.h"
#include "tessera/dtensor/tensor/overlap.h"
#include "tessera/dtensor/tensor/use_key.h"

namespace tessera::dtensor {
namespace {

/// A private backend key does not imply an autocast key; it is chosen by the compute device.
c10::DispatchKeySet keys_for(c10::DeviceType device) {
  c10::DispatchKeySet keys(kKey);
  if (device == c10::DeviceType::CPU) return keys.add(c10::DispatchKey::AutocastCPU);
  if (device == c10::DeviceType::CUDA) return keys.add(c10::DispatchKey::AutocastCUDA);
  return keys;
}

/// Whether the tensor has shapes alone, on fake ranks.
bool is_planned(const Sharding& sharding, c10::Device device) {
  if (!device.is_meta() || sharding.mesh().world() == nullptr) return false;
  return comm::world_of(sharding.mesh()).kind() == comm::RankWorld::Kind::fake;
}

constexpr const char* kNoMemory =
    "a sharded tensor, which has no memory of its own: take to_local(x) or full_tensor(x); "
    "torch::save cannot write one, a checkpoint can";

/// For a tensor that becomes sharded in place: its impl stays a plain one, so the error for data
/// access must come from the storage, and the tensor's device is that of its storage.
c10::Storage refusing_storage(c10::Device device) {
  auto storage = c10::make_intrusive<c10::StorageImpl>(
      c10::StorageImpl::use_byte_size_t(), 0, c10::DataPtr(nullptr, device), c10::GetCPUAllocator(),
      /*resizable=*/false);
  const std::string reason = join_text("This is ", kNoMemory);  // g++ 12 warns of a moved one
  storage->release_data_and_set_meta_custom_data_ptr_error_msg_(reason);
  return c10::Storage(std::move(storage));
}

c10::DispatchKeySet keys_for(const Sharding& sharding, c10::Device device) {
  const c10::DispatchKeySet keys = keys_for(device.type());
  const bool has_use_key = sharding.has_partial() || is_planned(sharding, device);
  return has_use_key ? keys.add(kUseKey) : keys;
}

caffe2::TypeMeta dtype_of(const Sharding& sharding) {
  return c10::scalarTypeToTypeMeta(static_cast<c10::ScalarType>(sharding.dtype()));
}

c10::intrusive_ptr<ShardedImpl> make_impl(at::Tensor local, const Sharding& sharding,
                                          c10::Device device, bool is_copy = false,
                                          std::shared_ptr<LazyLocal> lazy = nullptr) {
  const auto dtype = local.defined() ? local.dtype() : dtype_of(sharding);
  auto impl = c10::make_intrusive<ShardedImpl>(
      ShardedMeta(std::move(local), sharding, is_copy, std::move(lazy)), keys_for(sharding, device),
      dtype, device);
  impl->set_sizes_and_strides(as_ints(sharding.shape()), as_ints(sharding.stride()));
  return impl;
}

/// A new impl is an inference tensor if it is made in inference mode. While this is alive, it is
/// one if `impl` is: for contents that `impl` takes over.
class ModeOf {
 public:
  explicit ModeOf(c10::TensorImpl& impl) {
    if (impl.is_inference() != c10::InferenceMode::is_enabled()) mode_.emplace(impl.is_inference());
  }

 private:
  std::optional<c10::InferenceMode> mode_;
};

/// Memory of a ShardedImpl that begins with a cache line, so that it is on four of them.
void* new_block() { return ::operator new(sizeof(ShardedImpl), std::align_val_t(64)); }
void delete_block(void* block) { ::operator delete(block, std::align_val_t(64)); }

/// Blocks of the size of a ShardedImpl that this thread freed most recently. A thread may free a
/// block that another one allocated; the block then belongs to the freeing thread. Trivially
/// destructible, so that access is a single thread-local look-up; a separate object frees the
/// blocks at thread exit.
struct SpareBlocks {
  enum class State : uint8_t { fresh, open, closed };
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  static constexpr size_t kMost = 0;  // sanitizers must see every free
#else
  static constexpr size_t kMost = 512;  // a forward's results are freed together, in backward
#endif

  std::array<void*, kMost> blocks;
  size_t count;
  State state;
};
thread_local SpareBlocks spare_blocks;

/// Spare blocks that go from one thread to another: on a GPU backward runs on a thread of its own,
/// which frees what forward allocated, in every step.
class PassedBlocks {
 public:
  static constexpr size_t kMost = SpareBlocks::kMost / 4;  // at a time

  /// Moves blocks from a full `spare`; false if enough are waiting.
  bool put(SpareBlocks& spare) {
    const std::lock_guard lock(mutex_);
    if (waiting_.size() >= kMost * 8) return false;
    spare.count -= kMost;
    const auto begin = spare.blocks.begin() + static_cast<std::ptrdiff_t>(spare.count);
    waiting_.insert(waiting_.end(), begin, begin + static_cast<std::ptrdiff_t>(kMost));
    has_some_.store(true, std::memory_order_relaxed);
    return true;
  }
  /// Moves blocks to an empty `spare`; false if none is waiting.
  bool take(SpareBlocks& spare) {
    if (!has_some_.load(std::memory_order_relaxed)) return false;
    const std::lock_guard lock(mutex_);
    if (waiting_.empty()) return false;
    const auto begin = waiting_.end() - static_cast<std::ptrdiff_t>(kMost);
    std::copy(begin, waiting_.end(), spare.blocks.begin());
    waiting_.erase(begin, waiting_.end());
    spare.count = kMost;
    has_some_.store(!waiting_.empty(), std::memory_order_relaxed);
    return true;
  }

 private:
  std::mutex mutex_;
  std::vector<void*> waiting_;  // a multiple of kMost
  std::atomic<bool> has_some_ = false;
};

PassedBlocks& passed_blocks() {
  static auto* instance = new PassedBlocks();  // tensors may be freed during process exit
  return *instance;
}

struct CloseSpareBlocks {
  ~CloseSpareBlocks() {
    SpareBlocks& spare = spare_blocks;
    spare.state = SpareBlocks::State::closed;  // a thread's tensors may outlive this
    while (spare.count > 0) delete_block(spare.blocks[--spare.count]);
  }
};

bool open_spare_blocks(SpareBlocks& spare) {
  if (spare.state == SpareBlocks::State::closed) return false;
  thread_local const CloseSpareBlocks close;
  spare.state = SpareBlocks::State::open;
  return true;
}

/// Takes over the contents of `made`. The tensor keeps its views.
void take_over(c10::TensorImpl* impl, const c10::intrusive_ptr<ShardedImpl>& made) {
  ViewList views = is_sharded_impl(impl) ? std::move(meta_of(impl).views()) : ViewList();
  impl->shallow_copy_from(made);
  meta_of(impl).views() = std::move(views);
}

at::Tensor as_tensor(c10::intrusive_ptr<ShardedImpl> impl) {
  impl->set_storage_access_should_throw();
  return at::Tensor(std::move(impl));
}

}  // namespace

void* ShardedImpl::operator new(size_t) {
  SpareBlocks& spare = spare_blocks;
  if (spare.count == 0) [[unlikely]] {
    if (SpareBlocks::kMost == 0 || !open_spare_blocks(spare)) return new_block();
    if (!passed_blocks().take(spare)) return new_block();
  }
  return spare.blocks[--spare.count];
}

void ShardedImpl::operator delete(void* memory, size_t) {
  SpareBlocks& spare = spare_blocks;
  if (SpareBlocks::kMost == 0) return delete_block(memory);
  if (spare.state != SpareBlocks::State::open && !open_spare_blocks(spare)) [[unlikely]] {
    return delete_block(memory);
  }
  if (spare.count == SpareBlocks::kMost && !passed_blocks().put(spare)) [[unlikely]] {
    return delete_block(memory);
  }
  spare.blocks[spare.count++] = memory;
}

c10::intrusive_ptr<c10::TensorImpl> ShardedImpl::shallow_copy_and_detach(
    const c10::VariableVersion& version, bool allow_metadata_change) const {
  auto copy = c10::make_intrusive<ShardedImpl>(meta_, key_set(), dtype(), device());
  copy_tensor_metadata(this, copy.get(), version, allow_metadata_change);
  return copy;
}

c10::intrusive_ptr<c10::TensorImpl> ShardedImpl::shallow_copy_and_detach(
    c10::VariableVersion&& version, bool allow_metadata_change) const {
  auto copy = c10::make_intrusive<ShardedImpl>(meta_, key_set(), dtype(), device());
  copy_tensor_metadata(this, copy.get(), std::move(version), allow_metadata_change);
  return copy;
}

void ShardedImpl::shallow_copy_from(const c10::intrusive_ptr<c10::TensorImpl>& from) {
  drop_copies(this);
  drop_gathers(this);
  TensorImpl::shallow_copy_from(from);
  meta_ = is_sharded_impl(from.get()) ? meta_of(from.get()) : ShardedMeta();
  if (get_backend_meta() != nullptr) set_backend_meta(nullptr);  // may be an outdated one
}

void ShardedImpl::release_resources() {
  drop_copies(this);
  drop_gathers(this);
  meta_ = ShardedMeta();
  TensorImpl::release_resources();
}

/// libtorch's error reads "Cannot access storage of " + this.
const char* ShardedImpl::tensorimpl_type_name() const { return kNoMemory; }

void throw_lost_meta() {
  throw InternalError("a tensor took a sharded one's insides over by a way this library is not on");
}

void attach_meta(const at::Tensor& tensor) {
  c10::TensorImpl* impl = tensor.unsafeGetTensorImpl();
  if (impl->get_backend_meta() != nullptr) return;
  impl->set_backend_meta(c10::make_intrusive<AttachedMeta>(meta_of(impl)));
}

at::Tensor wrap(at::Tensor local, const Sharding& sharding) {
  const c10::Device device = local.device();
  return as_tensor(make_impl(std::move(local), sharding, device));
}

TensorOutline::TensorOutline(const Sharding& sharding, c10::Device device)
    : keys_(keys_for(sharding, device)),
      like_(c10::make_intrusive<ShardedImpl>(ShardedMeta(), keys_, dtype_of(sharding), device)) {
  like_->set_sizes_and_strides(as_ints(sharding.shape()), as_ints(sharding.stride()));
}

at::Tensor TensorOutline::wrap(at::Tensor local, const Sharding& sharding) const {
  const caffe2::TypeMeta dtype = local.dtype();
  auto impl =
      c10::make_intrusive<ShardedImpl>(std::move(local), sharding, keys_, dtype, like_->device());
  impl->set_sizes_and_strides_like(*like_);
  return as_tensor(std::move(impl));
}

at::Tensor wrap_copy_of_view(at::Tensor local, const Sharding& sharding) {
  const c10::Device device = local.device();
  return as_tensor(make_impl(std::move(local), sharding, device, /*is_copy=*/true));
}

void mark_copy_of_view(const at::Tensor& tensor, std::shared_ptr<const ViewOrigin> origin) {
  // The tensor is not shared yet, so its meta may still change.
  const_cast<ShardedMeta&>(meta_of(tensor.unsafeGetTensorImpl()))
      .become_copy_of_view(std::move(origin));
}

void mark_made_in_backward(const at::Tensor& tensor) {
  const_cast<ShardedMeta&>(meta_of(tensor.unsafeGetTensorImpl())).become_made_in_backward();
}

at::Tensor wrap_lazy(at::Tensor local, const Sharding& sharding, c10::Device device,
                     std::shared_ptr<LazyLocal> lazy) {
  return as_tensor(
      make_impl(std::move(local), sharding, device, /*is_copy=*/false, std::move(lazy)));
}

void become(const at::Tensor& tensor, at::Tensor local, const Sharding& sharding,
            std::shared_ptr<LazyLocal> lazy) {
  const c10::Device device = local.device();
  become(tensor, std::move(local), sharding, std::move(lazy), device);
}

void become(const at::Tensor& tensor, at::Tensor local, const Sharding& sharding,
            std::shared_ptr<LazyLocal> lazy, c10::Device device) {
  c10::TensorImpl* impl = tensor.unsafeGetTensorImpl();
  const ModeOf mode(*impl);
  auto made = make_impl(std::move(local), sharding, device, /*is_copy=*/false, std::move(lazy));
  made->set_backend_meta(c10::make_intrusive<AttachedMeta>(made->meta()));
  made->set_storage_keep_dtype(refusing_storage(device));
  const bool used_by_style = impl->key_set().has(kUseKey);
  take_over(impl, made);
  if (used_by_style && !sharding.has_partial()) add_use_key(tensor);
}

void become_plain(const at::Tensor& tensor, const at::Tensor& plain) {
  require(sharded_meta(plain) == nullptr, "become_plain: the value is itself sharded");
  tensor.unsafeGetTensorImpl()->shallow_copy_from(plain.getIntrusivePtr());
}

void add_use_key(const at::Tensor& tensor) {
  c10::TensorImpl* impl = tensor.unsafeGetTensorImpl();
  const ShardedMeta meta = meta_of(impl);
  const ModeOf mode(*impl);
  auto made = c10::make_intrusive<ShardedImpl>(meta, impl->key_set().add(kUseKey), impl->dtype(),
                                               impl->device());
  made->set_sizes_and_strides(impl->sizes(), impl->strides(), impl->storage_offset());
  if (impl->get_backend_meta() != nullptr) {
    made->set_backend_meta(c10::make_intrusive<AttachedMeta>(meta));
    made->set_storage_keep_dtype(refusing_storage(impl->device()));
  }
  take_over(impl, made);
}

bool is_row_major(const Sharding& sharding) {
  int64_t stride = 1;
  for (size_t d = sharding.shape().size(); d-- > 0;) {
    if (sharding.stride()[d] != stride) return false;
    stride *= std::max<int64_t>(sharding.shape()[d], 1);
  }
  return true;
}

at::Tensor strided_as(const at::Tensor& given, const Sharding& as) {
  const at::Tensor local =
      given.is_conj() || given.is_neg() ? given.resolve_conj().resolve_neg() : given;
  if (is_row_major(as)) return local.contiguous();
  const auto strides = as.local_stride();
  const at::IntArrayRef wanted(strides.data(), strides.size());
  if (!as.mesh().contains_me() || local.strides() == wanted) return local;
  // Elements that shared memory are stored separately once they are redistributed. Row-major, every
  // view exists that the global strides allow.
  if (shares_elements(as)) return local.contiguous();
  return at::empty_strided(local.sizes(), wanted, local.options()).copy_(local);
}

}  // namespace tessera::dtensor
