#pragma once

#include <ATen/core/Tensor.h>

#include <atomic>
#include <memory>

#include "tessera/dtensor/tensor/sharded_tensor.h"

/// Tracks the copies made for views whose elements are on other ranks, or are computed
/// (dispatch/gathered_views.h): the base of each copy, and whether it is stale.
namespace tessera::dtensor {

/// The number of live ViewOrigins in the process.
extern std::atomic<int64_t> live_view_origins;

inline bool any_gathered_views() { return live_view_origins.load(std::memory_order_relaxed) != 0; }

inline bool is_gathered_view(const at::Tensor& tensor) {
  const ShardedMeta* meta = sharded_meta(tensor);
  return meta != nullptr && meta->origin() != nullptr;
}

/// The origin of views of `gathered`, computed from `base` with sharding `as`.
std::shared_ptr<const ViewOrigin> make_origin(const at::Tensor& base, at::Tensor gathered,
                                              Sharding as, ViewValue value = ViewValue::same);

/// The view's value of a base, or the base's of a view.
at::Tensor computed(ViewValue value, const at::Tensor& from);

/// Gathers a view's copy again if its base was written to since. Communicates in that case.
void refresh(const at::Tensor& view);
void refresh(const ViewOrigin& origin);

/// Whether the base was written to after the copy was gathered.
bool is_stale(const ViewOrigin& origin);

/// Called before a tensor is written to: marks every other copy of it or of its bases as stale.
void note_write(const ShardedMeta& written);

}  // namespace tessera::dtensor
