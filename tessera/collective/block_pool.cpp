#include "tessera/collective/block_pool.h"

#include <ATen/EmptyTensor.h>
#include <c10/core/CPUAllocator.h>
#include <c10/core/TensorImpl.h>
#include <sys/mman.h>

#include <cstdlib>
#include <deque>
#include <mutex>
#include <new>
#include <vector>

#include "tessera/base/shape.h"

namespace tessera::comm {
namespace {

constexpr size_t kSmallPage = 64U << 10;
constexpr size_t kHugePage = 2U << 20;

/// Sizes are rounded, so that a block serves buffers of about its size.
size_t rounded(size_t bytes) {
  const size_t page = bytes >= 2 * kHugePage ? kHugePage : kSmallPage;
  return (bytes + page - 1) / page * page;
}

struct Block {
  void* data = nullptr;
  size_t bytes = 0;
};

Block allocate(size_t bytes) {
  const size_t alignment = bytes >= 2 * kHugePage ? kHugePage : 64;
  void* data = std::aligned_alloc(alignment, bytes);
  if (data == nullptr) throw std::bad_alloc();
  // A hint, which saves most of the time of touching it first; a kernel without them ignores it.
  if (alignment == kHugePage) madvise(data, bytes, MADV_HUGEPAGE);
  return {data, bytes};
}

class Pool {
 public:
  Block take(size_t bytes) {
    {
      std::lock_guard lock(mutex_);
      // The last freed first: its pages are most likely still in the cache.
      for (auto it = kept_.rbegin(); it != kept_.rend(); ++it) {
        if (it->bytes != bytes) continue;
        const Block found = *it;
        kept_.erase(std::next(it).base());
        kept_bytes_ -= bytes;
        return found;
      }
    }
    return allocate(bytes);
  }

  void give_back(Block block) {
    if (block.bytes > kMostKeptBytes) return std::free(block.data);
    std::vector<Block> dropped;
    {
      std::lock_guard lock(mutex_);
      kept_.push_back(block);
      kept_bytes_ += block.bytes;
      while (kept_bytes_ > kMostKeptBytes) {
        dropped.push_back(kept_.front());
        kept_bytes_ -= kept_.front().bytes;
        kept_.pop_front();
      }
    }
    for (const Block& old : dropped) std::free(old.data);
  }

  void release() {
    std::deque<Block> all;
    {
      std::lock_guard lock(mutex_);
      all.swap(kept_);
      kept_bytes_ = 0;
    }
    for (const Block& block : all) std::free(block.data);
  }

  size_t kept_bytes() {
    std::lock_guard lock(mutex_);
    return kept_bytes_;
  }

 private:
  std::mutex mutex_;
  std::deque<Block> kept_;  // the longest unused in front
  size_t kept_bytes_ = 0;
};

Pool& pool() {
  static auto* instance = new Pool();  // tensors may be freed after static objects are destroyed
  return *instance;
}

void give_back(void* context) {
  const std::unique_ptr<Block> block(static_cast<Block*>(context));
  pool().give_back(*block);
}

}  // namespace

at::Tensor pooled_empty(at::IntArrayRef sizes, at::ScalarType dtype) {
  const size_t bytes = static_cast<size_t>(numel_of(sizes)) * c10::elementSize(dtype);
  if (bytes < kSmallestPooledBytes) {
    return at::Tensor(at::detail::empty_cpu(sizes, dtype, /*pin_memory=*/false,
                                            /*memory_format=*/std::nullopt));
  }
  auto block = std::make_unique<Block>(pool().take(rounded(bytes)));
  void* data = block->data;
  c10::DataPtr owned(data, block.release(), give_back, c10::Device(c10::kCPU));
  // With the usual allocator, so that resize_ of such a tensor works as of any other.
  c10::Storage storage(c10::Storage::use_byte_size_t(), bytes, std::move(owned),
                       c10::GetCPUAllocator(), /*resizable=*/true);
  auto impl = c10::make_intrusive<c10::TensorImpl>(std::move(storage),
                                                   c10::DispatchKeySet(c10::DispatchKey::CPU),
                                                   c10::scalarTypeToTypeMeta(dtype));
  impl->set_sizes_contiguous(sizes);
  return at::Tensor(std::move(impl));
}

size_t kept_bytes() { return pool().kept_bytes(); }

void release_kept_blocks() { pool().release(); }

}  // namespace tessera::comm
