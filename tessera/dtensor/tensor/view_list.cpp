#include "tessera/dtensor/tensor/view_list.h"

#include <c10/core/UndefinedTensorImpl.h>

#include <algorithm>
#include <memory>
#include <mutex>
#include <utility>

namespace tessera::dtensor {
namespace {

using WeakView = c10::weak_intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl>;
constexpr size_t kFew = 8;

}  // namespace

struct ViewList::Views {
  std::mutex mutex;
  std::vector<WeakView> views;
  size_t prune_at = kFew;  // the size at which freed views are removed next
};

void ViewList::free_views(const Views* views) { delete views; }

ViewList::Views& ViewList::get_or_create() {
  Views* views = views_.load(std::memory_order_acquire);
  if (views != nullptr) return *views;
  auto made = std::make_unique<Views>();
  if (views_.compare_exchange_strong(views, made.get(), std::memory_order_acq_rel)) {
    views = made.release();
  }
  return *views;
}

void ViewList::add(const at::Tensor& view) {
  Views& list = get_or_create();
  const std::lock_guard lock(list.mutex);
  if (list.views.size() >= list.prune_at) {
    std::erase_if(list.views, [](const WeakView& each) { return each.expired(); });
    list.prune_at = std::max(kFew, 2 * list.views.size());
  }
  list.views.emplace_back(view.getIntrusivePtr());
}

std::vector<at::Tensor> ViewList::live() const {
  std::vector<at::Tensor> live;
  Views* list = views_.load(std::memory_order_acquire);
  if (list == nullptr) return live;
  const std::lock_guard lock(list->mutex);
  for (const WeakView& view : list->views) {
    if (auto impl = view.lock()) live.emplace_back(std::move(impl));
  }
  return live;
}

}  // namespace tessera::dtensor
