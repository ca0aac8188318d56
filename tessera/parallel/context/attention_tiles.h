#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "tessera/base/api.h"
#include "tessera/sharding/local_shape.h"

/// The calls of an attention kernel that cover a block of queries and keys.
///
/// Kernels know two masks: none, and causal for equal positions of queries and keys. A block of
/// rows from anywhere in the sequence is split so that every piece is one of the two or is masked
/// entirely; the latter are skipped. Queries at positions 4..7 and 8..11, keys at 0..3 and 8..11,
/// causal:
///
///                 keys 0..3   keys 8..11
///   queries 4..7    full        -
///   queries 8..11   full      diagonal     -> tiles: rows 0..7 x keys 0..3; rows 4..7 x keys 4..7
namespace tessera::parallel {

/// The start of each document and the end of the last: {0, 5, 12} are two. Empty: one document.
using DocumentOffsets = std::vector<int64_t>;

struct TESSERA_API TileProblem {
  std::span<const Interval> queries;  ///< positions of the local query rows, in row order
  std::span<const Interval> keys;
  bool causal = false;
  /// One for all batch rows, or one for each, or none.
  std::span<const DocumentOffsets> documents = {};
};

struct TESSERA_API Tile {
  Interval queries;        ///< local rows
  Interval keys;           ///< local rows
  bool diagonal = false;   ///< equal positions, causal
  int64_t batch_row = -1;  ///< -1: all
  bool operator==(const Tile&) const = default;
};

TESSERA_API std::vector<Tile> attention_tiles(const TileProblem& problem);

/// The part of a list of intervals that covers `rows` of the rows it describes.
TESSERA_API std::vector<Interval> part_of_rows(std::span<const Interval> intervals, Interval rows);

}  // namespace tessera::parallel
