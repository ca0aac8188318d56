#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <span>
#include <vector>

#include "tessera/sharding/boxes.h"

/// Copies of boxes between a dense local tensor and a flat buffer: packs shards for a collective
/// and unpacks them after it. Created once per plan; running it does not allocate on the CPU.
namespace tessera::exec {

/// One box: sizes with the strides of both sides, offsets from their beginnings, all in elements.
/// Dims are merged where both sides allow it, so a contiguous box has one dim.
struct Block {
  int64_t from = 0;
  int64_t to = 0;
  std::vector<int64_t> sizes;
  std::vector<int64_t> from_strides;
  std::vector<int64_t> to_strides;

  int64_t numel() const;
};

class BlockCopy {
 public:
  BlockCopy() = default;

  /// Adds `overlap`, from a dense tensor of shape `from_shape` at `from_offset` elements into the
  /// source buffer, to a dense one of shape `to_shape` at `to_offset`.
  void add(const Overlap& overlap, std::span<const int64_t> from_shape, int64_t from_offset,
           std::span<const int64_t> to_shape, int64_t to_offset);

  /// True if it copies exactly element i to element i for i in [0, numel): the source can then be
  /// used in place of the destination.
  bool is_identity(int64_t numel) const;

  /// True if it fills its destination in order without gaps: a range of it can then be produced
  /// separately.
  bool fills_in_order() const;

  bool empty() const { return blocks_.empty(); }
  std::span<const Block> blocks() const { return blocks_; }

  /// Both tensors contiguous, of one dtype, on one device; no effect on meta tensors.
  void run(const at::Tensor& from, at::Tensor& to) const;

  /// Only elements [begin, begin + count) of the destination, written to `to`. Requires the CPU and
  /// fills_in_order().
  void run_stretch(const at::Tensor& from, int64_t begin, int64_t count, char* to) const;

 private:
  void run_on_cpu(const char* from, char* to, int64_t element_bytes) const;

  std::vector<Block> blocks_;
  int64_t numel_ = 0;
};

}  // namespace tessera::exec
