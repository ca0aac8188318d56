#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "tessera/base/api.h"
#include "tessera/sharding/local_shape.h"
#include "tessera/sharding/sharding.h"

/// The part of the global tensor that a rank holds, as boxes, and the intersection of two ranks'
/// parts. Used by checkpoints (which bytes of which file a rank needs) and transfers between
/// meshes.
///
///   dp=2,tp=2 : SS0(2),R : 8x3, coordinate (1,0)  ->  rows [2,4) and [6,8): two boxes of 2x3
namespace tessera {

struct TESSERA_API Box {
  std::vector<int64_t> begin;  // global, by dim
  std::vector<int64_t> end;
  std::vector<int64_t> shape() const;
  int64_t numel() const;
  std::string to_text() const;  ///< "[2,0) to [4,3)"
  bool operator==(const Box&) const = default;
};

/// The boxes at a coordinate, in the memory order of the local tensor. Empty if it holds nothing;
/// one box without dims for a 0-dim tensor.
TESSERA_API std::vector<Box> held_boxes(const Sharding& sharding, std::span<const int> coordinate);

/// A range of one dim that two parts share: `length` elements from `from` in the first local
/// tensor, from `to` in the second.
struct TESSERA_API SharedRun {
  int64_t from = 0;
  int64_t to = 0;
  int64_t length = 0;
  bool operator==(const SharedRun&) const = default;
};

/// The intersection of two parts: the product over the dims of the runs of each dim.
struct TESSERA_API Overlap {
  std::vector<std::vector<SharedRun>> runs;  // by dim
  /// Of the shared elements as a separate dense tensor, a piece.
  std::vector<int64_t> shape() const;
  int64_t numel() const;
  bool empty() const { return numel() == 0; }

  /// The overlap of the first tensor with the piece, and that of the piece with the second: what
  /// packs a piece and what unpacks it.
  Overlap to_piece() const;
  Overlap from_piece() const;
};

TESSERA_API std::vector<SharedRun> common_runs(std::span<const Interval> a,
                                               std::span<const Interval> b);

/// The elements of one global tensor held both by the rank at `coordinate_a` under `a` and by the
/// one at `coordinate_b` under `b`; the meshes may differ.
TESSERA_API Overlap overlap(const Sharding& a, std::span<const int> coordinate_a, const Sharding& b,
                            std::span<const int> coordinate_b);

}  // namespace tessera
