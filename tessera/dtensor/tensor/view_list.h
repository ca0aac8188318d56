#pragma once

#include <ATen/core/Tensor.h>

#include <atomic>
#include <vector>

namespace tessera::dtensor {

/// The live views of one tensor, by weak references. Does not own them, and belongs to its tensor
/// alone: a copy of a ViewList is empty. Allocates nothing before the first view. Threads may add
/// views and read the list at the same time; moving and destroying it needs exclusive access.
class ViewList {
 public:
  ViewList() = default;
  ViewList(const ViewList&) noexcept {}
  ViewList(ViewList&& other) noexcept
      : views_(other.views_.exchange(nullptr, std::memory_order_relaxed)) {}
  ViewList& operator=(ViewList other) noexcept {
    other.views_.store(
        views_.exchange(other.views_.load(std::memory_order_relaxed), std::memory_order_relaxed),
        std::memory_order_relaxed);
    return *this;
  }
  ~ViewList() {
    if (const Views* views = views_.load(std::memory_order_acquire)) free_views(views);
  }

  /// Takes about 60 instructions. Freed views are removed as the list grows, so that it holds at
  /// most twice as many as were alive.
  void add(const at::Tensor& view);
  std::vector<at::Tensor> live() const;

 private:
  struct Views;
  static void free_views(const Views* views);
  Views& get_or_create();

  std::atomic<Views*> views_ = nullptr;
};

}  // namespace tessera::dtensor
