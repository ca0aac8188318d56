#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <numeric>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <vector>

#include "tessera/collective/block_pool.h"

namespace tessera::comm {

/// The input of an all_to_all_single before it is packed into one buffer.
struct Unpacked {
  /// Writes bytes [begin, begin + count) of the virtual send buffer to `to`. Called on the thread
  /// that makes the call or waits for it, with bounds that are multiples of 16 or the end of a
  /// rank's piece.
  std::function<void(int64_t begin, int64_t count, char* to)> pack;
  std::vector<int64_t> splits;  ///< elements to each rank
  /// Work to overlap with the transfer: called once, when everything is packed.
  std::function<void()> meanwhile;

  int64_t numel() const { return std::accumulate(splits.begin(), splits.end(), int64_t{0}); }
};

/// A backend that packs what it sends chunk by chunk while earlier chunks are in flight: the copy
/// stays in the cache, and the first bytes are sent before all is packed. For synchronous calls.
class PipelinedPack {
 public:
  virtual ~PipelinedPack() = default;

  /// `output` is flat. To other ranks it is an ordinary all_to_all_single.
  virtual c10::intrusive_ptr<c10d::Work> all_to_all_packing(
      at::Tensor& output, Unpacked input, std::vector<int64_t>& output_splits,
      const c10d::AllToAllOptions& options) = 0;
};

/// The same on any backend, with a buffer if necessary.
inline c10::intrusive_ptr<c10d::Work> all_to_all_packing(c10d::Backend& backend, at::Tensor& output,
                                                         Unpacked input,
                                                         std::vector<int64_t>& output_splits,
                                                         const c10d::AllToAllOptions& options) {
  if (auto* able = dynamic_cast<PipelinedPack*>(&backend)) {
    return able->all_to_all_packing(output, std::move(input), output_splits, options);
  }
  at::Tensor buffer = pooled_empty({input.numel()}, output.scalar_type());
  input.pack(0, static_cast<int64_t>(buffer.nbytes()), static_cast<char*>(buffer.data_ptr()));
  auto work = backend.alltoall_base(output, buffer, output_splits, input.splits, options);
  input.meanwhile();
  work->wait();  // the buffer is freed at the end of this scope
  return work;
}

}  // namespace tessera::comm
