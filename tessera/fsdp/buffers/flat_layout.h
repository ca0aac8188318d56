#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <span>
#include <vector>

/// The flat layout in which parameters of a group are communicated. A collective carries a few flat
/// tensors, its *slots*; each rank contributes one piece of each slot, and all pieces of a slot
/// have the same length:
///
///   slot of one large parameter sharded on dim 0 | rank 0's rows | rank 1's rows | rank 2's, 0 0 |
///     the gathered slot starts with the parameter itself: no copy, padding is at the end
///   slot of many small parameters                | a0 b0 c0 | a1 b1 c1 | a2 b2 c2 |
///     one message instead of many latency-bound ones; parameters are copied out afterwards
///
/// A 0-dim parameter, or one that is not sharded, is stored whole in the piece of every rank. On
/// one rank a piece is a whole slot: parameters are used where they are in it, so each starts at an
/// aligned place.
namespace tessera::fsdp {

constexpr int kWhole = -1;

struct ParamShape {
  std::vector<int64_t> whole;
  at::ScalarType dtype = at::kFloat;
  int dim = 0;  ///< sharded as by torch.chunk; kWhole: none
};

struct Slot {
  std::vector<size_t> params;
  at::ScalarType dtype = at::kFloat;
  int64_t piece = 0;    ///< elements per rank
  bool direct = false;  ///< the gathered slot starts with its only parameter
};

class FlatLayout {
 public:
  FlatLayout(std::vector<ParamShape> params, int ranks, int rank);

  /// The same slots, with every floating-point dtype replaced by `dtype`.
  FlatLayout with_dtype(at::ScalarType dtype) const;

  /// The concatenation of several layouts over the same ranks. Large parameters keep their slots.
  /// The slots of small ones are merged into one per dtype, in which the pieces of each layout
  /// follow those of the previous one.
  static FlatLayout joined(std::span<const FlatLayout* const> parts);

  int ranks() const { return ranks_; }
  size_t params() const { return params_.size(); }
  const ParamShape& param(size_t index) const { return params_[index]; }
  std::span<const Slot> slots() const { return slots_; }
  size_t slot_of(size_t param) const { return places_[param].slot; }

  /// The shape of this rank's shard.
  const std::vector<int64_t>& shard_shape(size_t param) const { return shard_shapes_[param]; }
  /// This rank's shard, as a view of its piece of the parameter's slot.
  at::Tensor shard_in(size_t param, const at::Tensor& piece) const;

  /// Bytes of the gathered slots plus the parameters that are copied out of them.
  int64_t gathered_bytes() const { return gathered_bytes_; }
  /// Whether the whole parameter is a view of its gathered slot; otherwise it is copied out.
  bool is_in_slot(size_t param) const { return places_[param].whole_offset < 0; }
  /// The slots (and the parameters) of a gather as views of `memory`, of gathered_bytes() bytes.
  std::vector<at::Tensor> slots_in(const at::Tensor& memory) const;
  std::vector<at::Tensor> wholes_in(const at::Tensor& memory) const;

  /// Copies between a parameter and all ranks' pieces of its slot: out of a gathered slot, or a
  /// gradient into the slot that is reduced.
  void copy_out(size_t param, const at::Tensor& slot, const at::Tensor& whole) const;
  void copy_in(size_t param, const at::Tensor& whole, const at::Tensor& slot) const;
  void add_in(size_t param, const at::Tensor& whole, const at::Tensor& slot) const;
  /// Appends what these copy between, for copy_pieces: views of the slot, and of the whole.
  void append_pieces(size_t param, const at::Tensor& slot, const at::Tensor& whole,
                     std::vector<at::Tensor>& in_slot, std::vector<at::Tensor>& in_whole) const;

 private:
  struct Place {
    size_t slot = 0;
    int64_t offset = 0;         // in the piece, in elements
    int64_t whole_offset = -1;  // in gathered memory, in bytes; -1: inside the slot
  };

  FlatLayout(int ranks, int rank) : ranks_(ranks), rank_(rank) {}
  void add_to_slots();
  void place_in_memory();
  std::vector<int64_t> piece_shape(size_t param, int rank) const;
  template <class Copy>
  void for_each_piece(size_t param, const at::Tensor& slot, const at::Tensor& whole,
                      const Copy& copy) const;

  template <class Visit>
  void for_each_stretch(size_t param, const Visit& visit) const;

  std::vector<ParamShape> params_;
  int ranks_;
  int rank_;
  std::vector<Place> places_;
  std::vector<std::vector<int64_t>> shard_shapes_;
  std::vector<Slot> slots_;
  std::vector<int64_t> slot_offsets_;  // in gathered memory, in bytes
  int64_t gathered_bytes_ = 0;
};

/// Copies tensor by tensor; on a device all contiguous pairs of the same types by one kernel, since
/// libtorch's kernel for lists takes pairs of equal strides alone.
void copy_pieces(const std::vector<at::Tensor>& to, const std::vector<at::Tensor>& from);

}  // namespace tessera::fsdp
