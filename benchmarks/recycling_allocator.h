#pragma once

#include <c10/core/CPUAllocator.h>

#include <cstdlib>
#include <cstring>
#include <new>
#include <vector>

namespace tessera::benchmarks {

/// Memory of tensors at a constant cost. glibc's posix_memalign takes 500 to 2,500 instructions for
/// the same request, depending on what was freed before, which would hide what is counted.
class RecyclingAllocator final : public c10::Allocator {
 public:
  /// From now on for all tensors of this process, up to 64 KiB each.
  static void install() {
    static RecyclingAllocator allocator;
    c10::SetCPUAllocator(&allocator, /*priority=*/100);
  }

  c10::DataPtr allocate(size_t bytes) override {
    if (bytes > kBlock) throw std::bad_alloc();
    if (spare_.empty()) spare_.push_back(std::aligned_alloc(64, kBlock));
    void* block = spare_.back();
    spare_.pop_back();
    return {block, block, give_back, c10::Device(c10::DeviceType::CPU)};
  }
  c10::DeleterFnPtr raw_deleter() const override { return give_back; }
  void copy_data(void* to, const void* from, size_t bytes) const override {
    std::memcpy(to, from, bytes);
  }

 private:
  static constexpr size_t kBlock = size_t{1} << 16;
  static void give_back(void* block) { spare_.push_back(block); }
  static inline std::vector<void*> spare_;
};

}  // namespace tessera::benchmarks
