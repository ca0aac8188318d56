#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "tessera/sharding/boxes.h"

/// Which rank writes what of a state, so that everything is written once and all ranks write about
/// equally much. A pure function: every rank computes the same plan.
///
///   tp=2, weight S0: 8x4         rank 0 writes rows [0,4), rank 1 rows [4,8)
///   dp=2, weight R: 8x4          one of the two writes it; a large one is split in two
///   dp=2,tp=2, weight R,S0       of each half there are two copies: one of their ranks writes it
namespace tessera::dcp {

/// A box that some ranks hold, all of them the same values.
struct HeldBox {
  Box box;
  std::vector<int> ranks;  ///< world ranks, ascending in mesh order
};

/// Every box of a sharded tensor, each once, with the ranks that hold it. Partial tensors have no
/// values that could be held: InvalidArgument.
std::vector<HeldBox> all_held_boxes(const Sharding& sharding);

/// Something to be written by one of several ranks.
struct Offer {
  size_t entry = 0;  ///< the caller's number for the tensor or value
  HeldBox held;
  uint64_t bytes = 0;
};

struct PlannedWrite {
  size_t entry = 0;
  Box box;
  int writer = 0;
};

struct WritePlanOptions {
  int world_size = 1;
  /// Splits replicated boxes of more than a rank's share into pieces of several ranks.
  bool split = true;
  /// Which rank is preferred among equally loaded ones.
  int first = 0;
};

std::vector<PlannedWrite> plan_writes(std::vector<Offer> offers, const WritePlanOptions& options);

}  // namespace tessera::dcp
