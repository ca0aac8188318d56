#include "tessera/sharding/mesh_order.h"

#include <algorithm>
#include <optional>

#include "tessera/base/errors.h"
#include "tessera/sharding/dim_intervals.h"

namespace tessera {
namespace {

/// One dim of a sharding whose axes do not shard it in mesh order.
class ReorderedDim {
 public:
  ReorderedDim(const Sharding& sharding, int dim)
      : sharding_(sharding),
        dim_(dim),
        nested_(sharding.axes_of_dim(dim).begin(), sharding.axes_of_dim(dim).end()),
        axes_(nested_) {
    std::ranges::sort(axes_);
  }

  /// Rewrites the placements of the dim's axes; returns false if none are exact.
  bool rewrite(std::vector<Placement>& placements) const {
    for (const int axis : axes_) at(placements, axis) = StridedShard(dim_, split_of(axis));
    if (!has_ragged() && is_exact(placements)) return true;
    for (size_t level = 0; level < axes_.size(); ++level) {
      Placement& placement = at(placements, axes_[level]);
      if (!placement.is_plain_shard()) continue;
      auto sizes = sizes_at(level);
      if (!is_chunked(sizes, sharding_.mesh().size(axes_[level]))) {
        placement = RaggedShard(dim_, std::move(sizes));
      }
    }
    return is_exact(placements);
  }

 private:
  static Placement& at(std::vector<Placement>& placements, int axis) {
    return placements[static_cast<size_t>(axis)];
  }

  bool has_ragged() const {
    return std::ranges::any_of(axes_, [this](int axis) {
      return sharding_.placement(axis).kind() == Placement::Kind::ragged;
    });
  }

  /// The number of pieces of the dim after the axes that shard before it but come later in the
  /// mesh.
  int64_t split_of(int axis) const {
    int64_t split = sharding_.placement(axis).split();
    for (const int before : nested_) {
      if (before == axis) break;
      if (before > axis) split *= sharding_.mesh().size(before);
    }
    return split;
  }

  template <class Visit>
  void for_each_coordinate(const Visit& visit) const {
    Coordinate coordinate(static_cast<size_t>(sharding_.mesh().ndim()), 0);
    const auto next = [&] {  // the last axis runs fastest
      for (size_t level = axes_.size(); level-- > 0;) {
        int& index = coordinate[static_cast<size_t>(axes_[level])];
        if (++index < sharding_.mesh().size(axes_[level])) return true;
        index = 0;
      }
      return false;
    };
    do {
      visit(coordinate);
    } while (next());
  }

  std::vector<Interval> held(std::span<const Placement> placements, std::span<const int> axes,
                             const Coordinate& coordinate) const {
    return dim_intervals(sharding_.shape()[static_cast<size_t>(dim_)],
                         shards_of_dim(sharding_.mesh(), placements, axes, coordinate));
  }

  /// The total sizes held by the ranks at each coordinate of the axes up to `level`.
  std::vector<int64_t> sizes_at(size_t level) const {
    int64_t inner = 1;
    for (size_t l = level + 1; l < axes_.size(); ++l) inner *= sharding_.mesh().size(axes_[l]);
    std::vector<int64_t> sizes;
    int64_t visited = 0;
    for_each_coordinate([&](const Coordinate& coordinate) {
      if (visited++ % inner == 0) sizes.push_back(0);
      for (const Interval& part : held(sharding_.placements(), nested_, coordinate)) {
        sizes.back() += part.size();
      }
    });
    return sizes;
  }

  static bool is_chunked(std::span<const int64_t> sizes, int64_t ranks) {
    for (size_t outer = 0; outer < sizes.size(); outer += static_cast<size_t>(ranks)) {
      int64_t whole = 0;
      for (int64_t i = 0; i < ranks; ++i) whole += sizes[outer + static_cast<size_t>(i)];
      for (int64_t i = 0; i < ranks; ++i) {
        if (sizes[outer + static_cast<size_t>(i)] != chunk_interval(whole, ranks, i).size())
          return false;
      }
    }
    return true;
  }

  bool is_exact(std::span<const Placement> placements) const {
    bool exact = true;
    for_each_coordinate([&](const Coordinate& coordinate) {
      exact = exact && held(placements, axes_, coordinate) ==
                           held(sharding_.placements(), nested_, coordinate);
    });
    return exact;
  }

  const Sharding& sharding_;
  int dim_;
  std::vector<int> nested_;  // the axes, outermost first
  std::vector<int> axes_;    // in mesh order
};

/// The first dim that no list describes; else nullopt, and `out` is the list.
std::optional<int> rewrite(const Sharding& sharding, std::vector<Placement>& out) {
  out.assign(sharding.placements().begin(), sharding.placements().end());
  if (sharding.has_default_order()) return std::nullopt;
  for (int dim = 0; dim < sharding.ndim(); ++dim) {
    if (std::ranges::is_sorted(sharding.axes_of_dim(dim))) continue;
    if (!ReorderedDim(sharding, dim).rewrite(out)) return dim;
  }
  return std::nullopt;
}

}  // namespace

std::vector<Placement> placements_in_mesh_order(const Sharding& sharding) {
  std::vector<Placement> out;
  if (const auto dim = rewrite(sharding, out)) {
    throw NotSupported(join_text(
        "the placements of ", sharding, " in mesh order: the axes shard dim ", *dim,
        " in another order, into uneven parts that no strided or ragged shard describes; use the "
        "sharding itself, which says the order"));
  }
  return out;
}

bool describes_same_parts(std::span<const Placement> list, const Sharding& sharding) {
  if (sharding.has_default_order()) return std::ranges::equal(list, sharding.placements());
  std::vector<Placement> said;
  return !rewrite(sharding, said) && std::ranges::equal(list, said);
}

}  // namespace tessera
