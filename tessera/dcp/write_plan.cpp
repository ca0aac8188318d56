#include "tessera/dcp/write_plan.h"

#include <algorithm>

#include "tessera/base/errors.h"
#include "tessera/base/iota_vector.h"

namespace tessera::dcp {
namespace {

/// Smaller pieces cost more in item headers and metadata than their balance is worth.
constexpr uint64_t kSmallestPiece = uint64_t{1} << 20;

/// Splits along the first dim that has more than one index.
void append_pieces(const Offer& offer, uint64_t count, std::vector<Offer>& out) {
  const Box& box = offer.held.box;
  for (size_t d = 0; d < box.begin.size(); ++d) {
    const int64_t size = box.end[d] - box.begin[d];
    if (size <= 1) continue;
    const auto pieces = std::min(static_cast<int64_t>(count), size);
    for (int64_t i = 0; i < pieces; ++i) {
      const Interval part = chunk_interval(size, pieces, i);
      if (part.size() == 0) break;
      Offer piece = offer;
      piece.held.box.begin[d] = box.begin[d] + part.begin;
      piece.held.box.end[d] = box.begin[d] + part.end;
      piece.bytes = offer.bytes / static_cast<uint64_t>(size) * static_cast<uint64_t>(part.size());
      out.push_back(std::move(piece));
    }
    return;
  }
  out.push_back(offer);
}

std::vector<Offer> split_large(std::vector<Offer> offers, uint64_t share) {
  std::vector<Offer> out;
  for (auto& offer : offers) {
    const uint64_t piece = std::max(share, kSmallestPiece);
    if (offer.held.ranks.size() == 1 || offer.bytes <= piece) {
      out.push_back(std::move(offer));
      continue;
    }
    const uint64_t wanted = offer.bytes / piece + (offer.bytes % piece != 0 ? 1 : 0);
    append_pieces(offer, std::min<uint64_t>(wanted, offer.held.ranks.size()), out);
  }
  return out;
}

}  // namespace

std::vector<HeldBox> all_held_boxes(const Sharding& sharding) {
  require(!sharding.has_partial(), "a checkpoint of ", sharding,
          ": a Partial tensor has no values yet; redistribute it to Shard or Replicate first");
  const DeviceMesh& mesh = sharding.mesh();
  std::vector<int> replicated;
  for (int axis = 0; axis < mesh.ndim(); ++axis) {
    if (sharding.placement(axis).is_replicate()) replicated.push_back(axis);
  }
  std::vector<HeldBox> out;
  for (const int rank : mesh.ranks()) {
    const Coordinate coordinate = *mesh.coordinate_of(rank);
    const bool is_first = std::ranges::all_of(
        replicated, [&](int axis) { return coordinate[static_cast<size_t>(axis)] == 0; });
    if (!is_first) continue;
    std::vector<int> holders = mesh.group(replicated, rank);
    for (auto& box : held_boxes(sharding, coordinate)) out.push_back({std::move(box), holders});
  }
  return out;
}

std::vector<PlannedWrite> plan_writes(std::vector<Offer> offers, const WritePlanOptions& options) {
  uint64_t total = 0;
  for (const auto& offer : offers) total += offer.bytes;
  const auto ranks = static_cast<uint64_t>(options.world_size);
  if (options.split) offers = split_large(std::move(offers), total / ranks + 1);

  // What only one rank has comes first; then the large pieces, so that the small ones even it out.
  std::vector<size_t> order = iota_vector(offers.size());
  std::ranges::stable_sort(order, [&](size_t a, size_t b) {
    const bool only_a = offers[a].held.ranks.size() == 1;
    const bool only_b = offers[b].held.ranks.size() == 1;
    return only_a != only_b ? only_a : offers[a].bytes > offers[b].bytes;
  });
  std::vector<uint64_t> load(ranks, 0);
  std::vector<PlannedWrite> out(offers.size());
  for (const size_t i : order) {
    auto& offer = offers[i];
    const auto preference = [&](int rank) {
      const int turn = (rank - options.first) % options.world_size;
      return std::pair(load[static_cast<size_t>(rank)],
                       turn < 0 ? turn + options.world_size : turn);
    };
    const int writer = *std::ranges::min_element(offer.held.ranks, {}, preference);
    load[static_cast<size_t>(writer)] += std::max<uint64_t>(offer.bytes, 1);
    out[i] = {offer.entry, std::move(offer.held.box), writer};
  }
  return out;
}

}  // namespace tessera::dcp
