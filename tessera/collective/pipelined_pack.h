#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <numeric>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <vector>

#include "tessera/collective/block_pool.h"

namespace tessera::comm {

/// What an all_to_all_single sends, before it lies in one buffer.
struct Unpacked {
  /// Writes bytes [begin, begin + count) of what would be the buffer to `to`. Called on the thread
  /// that makes the call or waits for it, with bounds that are multiples of 16 or the end of a
  /// rank's piece.
  std::function<void(int64_t begin, int64_t count, char* to)> pack;
  std::vector<int64_t> splits;  ///< elements to each rank
  /// What the caller has to do meanwhile: called once, when nothing is left to be packed.
  std::function<void()> meanwhile;

  int64_t numel() const { return std::accumulate(splits.begin(), splits.end(), int64_t{0}); }
};

/// A backend that packs what it sends chunk by chunk, while the chunks before are on their way: the
/// copy stays in the cache, and nobody waits for all of it. For synchronous calls.
class PipelinedPack {
 public:
  virtual ~PipelinedPack() = default;

  /// `output` is flat. To other ranks it is an all_to_all_single like any other.
  virtual c10::intrusive_ptr<c10d::Work> all_to_all_packing(
      at::Tensor& output, Unpacked input, std::vector<int64_t>& output_splits,
      const c10d::AllToAllOptions& options) = 0;
};

/// The same on any backend, with a buffer where it must be.
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
  work->wait();  // the buffer goes with this scope
  return work;
}

}  // namespace tessera::comm
