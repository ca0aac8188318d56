#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <span>
#include <vector>

/// Where the parameters of a group lie in what the ranks exchange. A collective of a group carries
/// a few flat tensors, its *slots*; each rank gives one piece of each slot, all pieces of a slot
/// equally long:
///
///   slot of one large parameter cut on dim 0     | rank 0's rows | rank 1's rows | rank 2's, 0 0 |
///     the gathered slot begins with the parameter itself: no copy, padding is at the end
///   slot of many small parameters                | a0 b0 c0 | a1 b1 c1 | a2 b2 c2 |
///     one message where each alone would cost more than its bytes; copied out after it
///
/// A parameter of no dims, or one that is not cut, is whole in every rank's piece.
namespace tessera::fsdp {

constexpr int kWhole = -1;

struct ParamShape {
  std::vector<int64_t> whole;
  at::ScalarType dtype = at::kFloat;
  int dim = 0;  ///< that is cut, as torch.chunk does; kWhole: none
};

struct Slot {
  std::vector<size_t> params;
  at::ScalarType dtype = at::kFloat;
  int64_t piece = 0;    ///< elements of one rank
  bool direct = false;  ///< the gathered slot begins with its one parameter
};

class FlatLayout {
 public:
  FlatLayout(std::vector<ParamShape> params, int ranks, int rank);

  /// The same slots; those with elements of a floating-point type in another one.
  FlatLayout with_dtype(at::ScalarType dtype) const;

  /// The parameters of several layouts over the same ranks, one after another. Large ones keep
  /// their slots; slots of small ones become one for each type, in which each layout's pieces
  /// follow those of the layouts before it.
  static FlatLayout joined(std::span<const FlatLayout* const> parts);

  int ranks() const { return ranks_; }
  size_t params() const { return params_.size(); }
  const ParamShape& param(size_t index) const { return params_[index]; }
  std::span<const Slot> slots() const { return slots_; }
  size_t slot_of(size_t param) const { return places_[param].slot; }

  /// The shape of this rank's shard.
  const std::vector<int64_t>& shard_shape(size_t param) const { return shard_shapes_[param]; }
  /// This rank's shard as a view of its piece of the parameter's slot.
  at::Tensor shard_in(size_t param, const at::Tensor& piece) const;

  /// Bytes of the gathered slots and of what is copied out of them.
  int64_t gathered_bytes() const { return gathered_bytes_; }
  /// The slots of a gather, and then its parameters, in `memory` of gathered_bytes() bytes.
  std::vector<at::Tensor> slots_in(const at::Tensor& memory) const;
  std::vector<at::Tensor> wholes_in(const at::Tensor& memory) const;

  /// Between a parameter and all ranks' pieces of its slot: gathered -> whole, gradient -> pieces.
  void copy_out(size_t param, const at::Tensor& slot, const at::Tensor& whole) const;
  void copy_in(size_t param, const at::Tensor& whole, const at::Tensor& slot) const;
  void add_in(size_t param, const at::Tensor& whole, const at::Tensor& slot) const;

 private:
  struct Place {
    size_t slot = 0;
    int64_t offset = 0;         // in the piece, elements
    int64_t whole_offset = -1;  // in gathered memory, bytes; -1: the slot's own
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
  std::vector<int64_t> slot_offsets_;  // in gathered memory, bytes
  int64_t gathered_bytes_ = 0;
};

}  // namespace tessera::fsdp
