#include "tessera/dtensor/tensor/lazy.h"

#include <algorithm>
#include <utility>

namespace tessera::dtensor {

std::atomic<int64_t> LazyLocal::alive_{0};

LazyLocal::LazyLocal() { alive_.fetch_add(1, std::memory_order_relaxed); }
LazyLocal::~LazyLocal() { alive_.fetch_sub(1, std::memory_order_relaxed); }

std::shared_ptr<const LazyLocal::KnownView> LazyLocal::find_view(const KnownView& like) const {
  const auto at = std::ranges::find_if(views_, [&](const auto& known) {
    return known->op == like.op && known->of == like.of && known->arguments == like.arguments;
  });
  return at != views_.end() ? *at : nullptr;
}

void LazyLocal::keep_view(KnownView view) {
  constexpr size_t kMostKept = 16;  // bounds a program whose slices differ in every step
  if (views_.size() == kMostKept) views_.erase(views_.begin());
  views_.push_back(std::make_shared<const KnownView>(std::move(view)));
}

at::Tensor shards_to_read(const at::Tensor& tensor, LazyLocal& lazy) {
  const at::Tensor shards = lazy.shards();
  const bool is_same = shards.scalar_type() == tensor.scalar_type();
  return is_same || !lazy.root().computes() ? shards : shards.to(tensor.scalar_type());
}

}  // namespace tessera::dtensor
