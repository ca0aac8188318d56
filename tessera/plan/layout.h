#pragma once

#include <bit>
#include <cstdint>

/// The compact representation of a sharding in the search: eight bytes, one per axis of more than
/// one rank. Axes of one rank are left out, since their placement does not affect what a rank
/// holds.
namespace tessera::plan {

constexpr int kMaxAxes = 8;

/// A placement in five bits. Each tensor dim that matters gets a slot.
using Code = uint8_t;
constexpr Code kReplicate = 0;
constexpr Code kPartialFrom = 1;    // the source's Partial
constexpr Code kPartialTo = 2;      // the target's, if it is another one
constexpr Code kIrregularFrom = 3;  // the source's strided or ragged shard on this axis
constexpr Code kIrregularTo = 4;    // the target's, if it is another one
constexpr Code kFirstSlot = 5;      // kFirstSlot + i: Shard(dim of slot i)
constexpr int kMaxSlots = 2 * kMaxAxes;
constexpr int kCodes = kFirstSlot + kMaxSlots;

constexpr bool is_partial(Code c) { return c == kPartialFrom || c == kPartialTo; }
constexpr bool is_shard(Code c) { return c >= kIrregularFrom; }
constexpr bool is_irregular(Code c) { return c == kIrregularFrom || c == kIrregularTo; }

/// Codes by axis and, for sharding axes, the place: how many axes shard the dim before it. Stored
/// as one integer, a byte per axis: writing single bytes and then reading the whole would stall on
/// store forwarding.
class Layout {
 public:
  Code code(int axis) const { return cell(axis) >> 3; }
  int place(int axis) const { return cell(axis) & 7; }
  /// Code and place together.
  uint8_t cell(int axis) const { return static_cast<uint8_t>(cells_ >> 8 * axis); }

  void set(int axis, Code code, int place = 0) {
    set_cell(axis, static_cast<uint8_t>(code << 3 | place));
  }
  void set_cell(int axis, uint8_t cell) {
    cells_ = (cells_ & ~(uint64_t{0xff} << 8 * axis)) | uint64_t{cell} << 8 * axis;
  }

  uint64_t key() const { return cells_; }
  bool operator==(const Layout& other) const = default;

 private:
  uint64_t cells_ = 0;
};

/// A set of axes: bit a represents axis a.
using AxisSet = uint32_t;

constexpr AxisSet only(int axis) { return AxisSet{1} << axis; }
constexpr bool has(AxisSet set, int axis) { return (set >> axis & 1U) != 0; }
/// Without a hardware instruction, std::popcount is a library call.
constexpr int count(AxisSet set) {
  int n = 0;
  for (; set != 0; set &= set - 1) ++n;
  return n;
}

/// Calls f(axis) for each axis of the set, in ascending order.
template <typename F>
constexpr void for_each_axis(AxisSet set, const F& f) {
  for (; set != 0; set &= set - 1) f(std::countr_zero(set));
}

/// Calls f(subset) for each non-empty subset of the set, larger ones before their subsets.
template <typename F>
constexpr void for_each_subset(AxisSet set, const F& f) {
  for (AxisSet subset = set; subset != 0; subset = (subset - 1) & set) f(subset);
}

/// The same and then f(0).
template <typename F>
constexpr void for_each_part(AxisSet set, const F& f) {
  for_each_subset(set, f);
  f(AxisSet{0});
}

}  // namespace tessera::plan
