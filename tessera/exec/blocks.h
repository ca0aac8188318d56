#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <span>
#include <vector>

#include "tessera/sharding/boxes.h"

/// Copies of boxes between a dense local tensor and a flat buffer: how shards are packed for a
/// collective and unpacked after it. Made once per plan; running it costs no allocation on the CPU.
namespace tessera::exec {

/// One box: sizes with the strides of both sides, offsets from their beginnings, all in elements.
/// Dims are merged where both sides allow, so a contiguous box has one dim.
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

  /// What `overlap` names, from a dense tensor of shape `from_shape` at `from_offset` elements into
  /// the source buffer, to a dense one of shape `to_shape` at `to_offset`.
  void add(const Overlap& overlap, std::span<const int64_t> from_shape, int64_t from_offset,
           std::span<const int64_t> to_shape, int64_t to_offset);

  /// True if it copies element i to element i for i in [0, numel) and nothing else: the source may
  /// then stand in for the destination.
  bool is_identity(int64_t numel) const;

  /// True if it fills its destination from the first element to the last without a gap: then a
  /// stretch of it can be made by itself.
  bool fills_in_order() const;

  bool empty() const { return blocks_.empty(); }
  std::span<const Block> blocks() const { return blocks_; }

  /// Both tensors contiguous, of one dtype, on one device; nothing is done for meta tensors.
  void run(const at::Tensor& from, at::Tensor& to) const;

  /// Elements [begin, begin + count) of the destination alone, at `to`. Only on the CPU, and only
  /// if it fills in order.
  void run_stretch(const at::Tensor& from, int64_t begin, int64_t count, char* to) const;

 private:
  void run_on_cpu(const char* from, char* to, int64_t element_bytes) const;

  std::vector<Block> blocks_;
  int64_t numel_ = 0;
};

/// The overlap's elements as a dense tensor of their own: its shape.
std::vector<int64_t> piece_shape(const Overlap& overlap);

/// The overlap between a part and the piece itself, so that `add` can pack (part -> piece) and
/// unpack (piece -> part).
Overlap part_to_piece(const Overlap& overlap);
Overlap piece_to_part(const Overlap& overlap);

}  // namespace tessera::exec
