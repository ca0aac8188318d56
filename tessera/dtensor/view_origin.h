#pragma once

#include <ATen/core/Tensor.h>

#include <atomic>
#include <memory>

#include "tessera/dtensor/sharded_tensor.h"

/// The copies that views were taken of where the elements of a view are on other ranks
/// (dispatch/gathered_views.h): which base each is a copy of, and whether it is out of date.
namespace tessera::dtensor {

/// How many copies that views were taken of (ViewOrigin) live in the process.
extern std::atomic<int64_t> live_view_origins;

inline bool any_gathered_views() { return live_view_origins.load(std::memory_order_relaxed) != 0; }

inline bool is_gathered_view(const at::Tensor& tensor) {
  const ShardedMeta* meta = sharded_meta(tensor);
  return meta != nullptr && meta->origin() != nullptr;
}

/// What views of `gathered`, the value of `base` placed `as`, are views of.
std::shared_ptr<const ViewOrigin> make_origin(at::Tensor base, at::Tensor gathered, Sharding as);

/// Gathers a view's copy again if its base was written to since. Communicates then.
void refresh(const at::Tensor& view);
void refresh(const ViewOrigin& origin);

/// Whether the base of the copy was written to since it was gathered.
bool is_stale(const ViewOrigin& origin);

/// The tensor is about to be written to: every other copy of it or of its bases is out of date.
void note_write(const ShardedMeta& written);

}  // namespace tessera::dtensor
