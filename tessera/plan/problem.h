#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <utility>
#include <vector>

#include "tessera/plan/layout.h"
#include "tessera/plan/plan.h"

/// Precomputed data about (from, to, machine) for the search: source and goal as layouts, the local
/// size of a layout, which layouts exist, the cost of a move.
namespace tessera::plan {

class Problem {
 public:
  /// Two canonical shardings (canonical.h) of one tensor on one mesh. Throws NotSupported for more
  /// than kMaxAxes axes of more than one rank.
  Problem(const Sharding& from, const Sharding& to, const cost::Machine& machine);

  const Layout& start() const { return start_; }
  const Layout& goal() const { return goal_; }

  /// The number of axes of more than one rank.
  int axes() const { return static_cast<int>(mesh_axis_.size()); }
  int mesh_axis(int axis) const { return mesh_axis_[static_cast<size_t>(axis)]; }
  int64_t ranks(AxisSet group) const { return prices_[group].ranks; }

  /// The number of tensor dims that matter: at most five, or as many as source and goal shard.
  int slots() const { return static_cast<int>(slots_.size()); }
  /// Earlier slots that are equivalent to this one: neither end shards them, and sharding leaves
  /// equal extents.
  uint32_t equivalent(int slot) const { return equivalent_[static_cast<size_t>(slot)]; }
  /// The slot that a sharding code refers to.
  int slot(int axis, Code code) const { return slot_of_[axis][code]; }
  /// The shard codes that an axis may take: every slot, and the target's own if it is irregular.
  const std::vector<Code>& shards(int axis) const { return shards_[axis]; }
  bool is_ragged(int axis, Code code) const {
    return is_irregular(code) && irregular(axis, code).kind() == Placement::Kind::ragged;
  }
  /// Whether the axis may change from the source's Partial to the target's without communication.
  bool can_rescale(int axis) const { return has(can_rescale_, axis); }

  /// Whether the layout is valid: a ragged table applies only to the outer pieces that it was
  /// written for, and a tensor cannot be a sum on one axis and a maximum on another.
  bool exists(const Layout& layout) const {
    return !partials_clash_ && !has_ragged_ ? true : exists_slow(layout);
  }

  /// The largest local part in bytes.
  int64_t local_bytes(const Layout& layout) const;
  /// The largest part of a slot's dim on any rank.
  int64_t extent(const Layout& layout, int slot) const;
  /// The same after plain sharding by these axes, in any order; irregular shards leave no less.
  int64_t plain_extent(int slot, AxisSet shard_axes) const {
    return extents_[static_cast<size_t>(slot) << axes() | shard_axes];
  }
  /// Bytes of an element times the sizes of dims without a slot.
  int64_t fixed_bytes() const { return fixed_bytes_; }

  /// Time of a move over a group between layouts with local parts of these sizes.
  double seconds(Move move, AxisSet group, int64_t from_bytes, int64_t to_bytes) const {
    const Rate& rate = prices_[group].rates[static_cast<size_t>(move)];
    return rate.start_s + rate.byte_s * static_cast<double>(priced(move, from_bytes, to_bytes));
  }
  /// Its time per byte.
  double byte_seconds(Move move, AxisSet group) const {
    return prices_[group].rates[static_cast<size_t>(move)].byte_s;
  }
  /// The size that a move is priced by.
  static int64_t priced(Move move, int64_t from_bytes, int64_t to_bytes) {
    if (move == Move::slice || move == Move::all_gather) return to_bytes;
    return move == Move::all_to_all ? std::max(from_bytes, to_bytes) : from_bytes;
  }
  /// The largest number of bytes that one rank sends.
  int64_t bytes_sent(Move move, AxisSet group, int64_t from_bytes, int64_t to_bytes) const;

  /// The sharding that a layout represents.
  Sharding sharding(const Layout& layout) const;

 private:
  /// The cost model with the link and the size of a group filled in, by move.
  struct Rate {
    double start_s = 0;
    double byte_s = 0;
  };
  struct Price {
    cost::Link link;
    int64_t ranks = 1;
    std::array<Rate, kMoves> rates{};
  };

  void read_axes();
  void read_slots();
  Layout read(const Sharding& sharding) const;
  void list_shards();
  void fill_extents();
  void find_equivalent();
  void fill_prices();
  void fill_rates(Price& price) const;
  bool exists_slow(const Layout& layout) const;
  bool same_before(const Layout& a, const Layout& b, int axis) const;
  const Placement& irregular(int axis, Code code) const;
  int64_t irregular_extent(const Layout& layout, AxisSet shard_axes, int dim) const;

  Sharding from_;
  Sharding to_;
  cost::Machine machine_;
  std::vector<int> mesh_axis_;
  std::array<int64_t, kMaxAxes> axis_ranks_{};
  std::vector<int> slots_;
  std::array<uint32_t, kMaxSlots> equivalent_{};
  std::array<std::array<uint8_t, kCodes>, kMaxAxes> slot_of_{};
  std::array<std::vector<Code>, kMaxAxes> shards_;
  AxisSet can_rescale_ = 0;
  bool partials_clash_ = false;
  bool has_ragged_ = false;
  Layout start_;
  Layout goal_;

  int64_t fixed_bytes_ = 1;
  std::vector<int64_t> extents_;  // [slot][set of plain sharding axes]
  std::vector<Price> prices_;     // [group]
  // Memo of extents with irregular shards: by the layout's cells on one slot.
  mutable std::vector<std::pair<uint64_t, int64_t>> irregular_extents_;
};

}  // namespace tessera::plan
