#include "tessera/rules/code/reshape.h"

#include <algorithm>

#include "tessera/base/errors.h"
#include "tessera/sharding/local_shape.h"

namespace tessera::rules {
namespace {

/// Dims of the old and of the new shape, with sizes above 1, that hold the same elements.
struct Segment {
  std::vector<int> from, to;
};

std::vector<Segment> segments(std::span<const int64_t> from, std::span<const int64_t> to) {
  std::vector<int> f, t;
  for (size_t d = 0; d < from.size(); ++d) {
    if (from[d] != 1) f.push_back(static_cast<int>(d));
  }
  for (size_t d = 0; d < to.size(); ++d) {
    if (to[d] != 1) t.push_back(static_cast<int>(d));
  }
  std::vector<Segment> out;
  size_t i = 0, j = 0;
  while (i < f.size() && j < t.size()) {
    Segment s{{f[i]}, {t[j]}};
    int64_t a = from[static_cast<size_t>(f[i++])], b = to[static_cast<size_t>(t[j++])];
    while (a != b) {
      if (a < b && i < f.size()) {
        s.from.push_back(f[i]);
        a *= from[static_cast<size_t>(f[i++])];
      } else if (j < t.size()) {
        s.to.push_back(t[j]);
        b *= to[static_cast<size_t>(t[j++])];
      } else {
        break;
      }
    }
    out.push_back(std::move(s));
  }
  return out;
}

struct Factor {
  int64_t size;
  int axis = -1;  // the axis that shards it
};

/// Takes the outermost `ranks` from the unassigned factors, inside `split` equal pieces.
bool own(std::vector<Factor>& factors, int64_t split, int64_t ranks, int axis) {
  for (size_t i = 0; i < factors.size(); ++i) {
    if (factors[i].axis >= 0) continue;
    int64_t& size = factors[i].size;
    if (split > 1) {
      if (split % size == 0) {
        split /= size;
        continue;
      }
      if (size % split != 0) return false;
      const int64_t rest = size / split;
      size = split;
      factors.insert(factors.begin() + static_cast<std::ptrdiff_t>(i) + 1, {rest});
      split = 1;
      continue;
    }
    if (size == 1) continue;
    if (size % ranks != 0) return false;
    size /= ranks;
    factors.insert(factors.begin() + static_cast<std::ptrdiff_t>(i), {ranks, axis});
    return true;
  }
  return false;
}

class Reshaper {
 public:
  Reshaper(const Sharding& from, std::span<const int64_t> shape, std::vector<int> order)
      : from_(from), shape_(shape), order_(std::move(order)) {
    out_.assign(from.placements().begin(), from.placements().end());
  }

  std::optional<std::vector<Placement>> run() {
    if (std::ranges::equal(from_.shape(), shape_)) return out_;
    std::vector<bool> done(out_.size());
    const bool empty = from_.numel() == 0;
    for (const auto& segment : segments(from_.shape(), shape_)) {
      std::vector<int> axes;
      for (int axis : order_) {
        const Placement& p = from_.placement(axis);
        if (p.is_sharded() && std::ranges::find(segment.from, p.dim()) != segment.from.end()) {
          axes.push_back(axis);
          done[static_cast<size_t>(axis)] = true;
        }
      }
      if (axes.empty()) continue;
      if (empty) return std::nullopt;
      if (!rename(segment, axes) && !even(segment, axes) && !uneven(segment, axes))
        return std::nullopt;
    }
    for (size_t a = 0; a < out_.size(); ++a) {
      if (!out_[a].is_sharded() || done[a]) continue;
      if (from_size(out_[a].dim()) != 1) return std::nullopt;  // an empty dim
      const auto dim = one_for(out_[a].dim());
      if (!dim) return std::nullopt;
      out_[a] = out_[a].on_dim(*dim);
    }
    if (!ragged_lists_fit()) return std::nullopt;
    return out_;
  }

 private:
  /// A ragged shard lists sizes for every part that the axes before it make of its dim. Shards of
  /// several dims of size 1 may have met in one dim, where they would need longer lists.
  bool ragged_lists_fit() const {
    for (size_t dim = 0; dim < shape_.size(); ++dim) {
      size_t parts = 1;
      for (const int axis : order_) {
        const Placement& p = out_[static_cast<size_t>(axis)];
        if (!p.is_sharded(static_cast<int>(dim))) continue;
        parts *= static_cast<size_t>(from_.mesh().size(axis));
        if (p.kind() == Placement::Kind::ragged && p.sizes().size() != parts) return false;
      }
    }
    return true;
  }

  Placement& out(int axis) { return out_[static_cast<size_t>(axis)]; }
  int64_t from_size(int dim) const { return from_.shape()[static_cast<size_t>(dim)]; }
  int64_t to_size(int dim) const { return shape_[static_cast<size_t>(dim)]; }

  /// Where a shard of a size-1 dim goes, of which one rank has all: to any other dim of size 1,
  /// preferably the one between the same larger dims.
  std::optional<int> one_for(int dim) const {
    const auto larger_before = [](std::span<const int64_t> shape, int d) {
      return std::ranges::count_if(shape.first(static_cast<size_t>(d)),
                                   [](int64_t size) { return size != 1; });
    };
    std::optional<int> any;
    for (int d = 0; d < static_cast<int>(shape_.size()); ++d) {
      if (to_size(d) != 1) continue;
      if (larger_before(shape_, d) == larger_before(from_.shape(), dim)) return d;
      if (!any) any = d;
    }
    return any;
  }

  bool rename(const Segment& s, const std::vector<int>& axes) {
    if (s.from.size() != 1 || s.to.size() != 1) return false;
    for (int axis : axes) out(axis) = from_.placement(axis).on_dim(s.to[0]);
    return true;
  }

  bool even(const Segment& s, const std::vector<int>& axes) {
    std::vector<Factor> all;
    for (int dim : s.from) {
      std::vector<Factor> factors = {{from_size(dim)}};
      for (int axis : axes) {
        const Placement& p = from_.placement(axis);
        if (!p.is_sharded(dim)) continue;
        if (p.kind() == Placement::Kind::ragged) return false;
        const int64_t split = p.kind() == Placement::Kind::strided ? p.split() : 1;
        if (!own(factors, split, from_.mesh().size(axis), axis)) return false;
      }
      all.insert(all.end(), factors.begin(), factors.end());
    }
    std::vector<Placement> placed = out_;
    size_t next = 0;
    for (int dim : s.to) {
      std::vector<Factor> mine;
      for (int64_t rest = to_size(dim); rest > 1 || (next < all.size() && all[next].size == 1);) {
        if (next == all.size()) return false;
        Factor& f = all[next];
        if (rest % f.size == 0) {
          mine.push_back(f);
          rest /= f.size;
          ++next;
        } else if (f.axis < 0 && f.size % rest == 0) {
          mine.push_back({rest});
          f.size /= rest;
          rest = 1;
        } else {
          return false;
        }
      }
      place(mine, dim, placed);
    }
    out_ = std::move(placed);
    return true;
  }

  /// The product before an axis's factor, without the factors of earlier axes: its split.
  void place(const std::vector<Factor>& factors, int dim, std::vector<Placement>& placed) const {
    std::vector<int> taken;
    for (int axis : order_) {
      int64_t split = 1;
      bool here = false;
      for (const auto& f : factors) {
        here = f.axis == axis;
        if (here) break;
        if (f.axis < 0 || std::ranges::find(taken, f.axis) == taken.end()) split *= f.size;
      }
      if (!here) continue;
      placed[static_cast<size_t>(axis)] = split == 1 ? Shard(dim) : StridedShard(dim, split);
      taken.push_back(axis);
    }
  }

  /// One old dim is sharded, and one new dim starts at the same position.
  bool uneven(const Segment& s, const std::vector<int>& axes) {
    const int dim = from_.placement(axes[0]).dim();
    for (int axis : axes) {
      const Placement& p = from_.placement(axis);
      if (p.dim() != dim || p.kind() == Placement::Kind::strided) return false;
    }
    int64_t before = 1, inner = 1, numel = 1;
    for (int d : s.from) {
      numel *= from_size(d);
      if (d < dim) before *= from_size(d);
      if (d > dim) inner *= from_size(d);
    }
    int to_dim = -1;
    int64_t to_before = 1, to_inner = 1;
    for (int d : s.to) {
      if (to_before == before) to_dim = d;
      if (to_dim == d) break;
      to_before *= to_size(d);
    }
    if (to_dim < 0) return false;
    to_inner = numel / before / to_size(to_dim);

    std::vector<Placement> placed = out_;
    std::vector<int64_t> pieces = {from_size(dim)};  // part sizes after the axes so far, by rank
    for (int axis : axes) {
      const Placement& p = from_.placement(axis);
      const int ranks = from_.mesh().size(axis);
      std::vector<int64_t> parts, table;
      bool plain = true;
      for (size_t i = 0; i < pieces.size(); ++i) {
        const int64_t to_piece = pieces[i] * inner / to_inner;
        for (int k = 0; k < ranks; ++k) {
          const int64_t part =
              p.is_plain_shard()
                  ? chunk_interval(pieces[i], ranks, k).size()
                  : p.sizes()[i * static_cast<size_t>(ranks) + static_cast<size_t>(k)];
          if (part * inner % to_inner != 0) return false;
          parts.push_back(part);
          table.push_back(part * inner / to_inner);
          plain &= table.back() == chunk_interval(to_piece, ranks, k).size();
        }
      }
      placed[static_cast<size_t>(axis)] = plain ? Shard(to_dim) : RaggedShard(to_dim, table);
      pieces = std::move(parts);
    }
    out_ = std::move(placed);
    return true;
  }

  const Sharding& from_;
  std::span<const int64_t> shape_;
  std::vector<int> order_;
  std::vector<Placement> out_;
};

/// The product of the sizes; nothing if it is not an int64_t.
std::optional<int64_t> product_of(std::span<const int64_t> sizes) {
  int64_t out = 1;
  for (const int64_t size : sizes) {
    if (__builtin_mul_overflow(out, size, &out)) return std::nullopt;
  }
  return out;
}

}  // namespace

std::optional<std::vector<Placement>> reshape_placements(const Sharding& from,
                                                         std::span<const int64_t> shape,
                                                         std::vector<int> order) {
  const bool any_negative = std::ranges::any_of(shape, [](int64_t size) { return size < 0; });
  if (any_negative || product_of(shape) != from.numel()) return std::nullopt;
  return Reshaper(from, shape, std::move(order)).run();
}

std::vector<int64_t> complete_shape(std::vector<int64_t> shape, int64_t numel) {
  auto given = shape;
  std::erase(given, -1);
  const auto known = product_of(given);
  require(known.has_value(), "a shape of ", given.size(), " sizes has more than 2^63 elements");
  for (int64_t& size : shape) {
    if (size == -1) size = *known == 0 ? 0 : numel / *known;
  }
  return shape;
}

}  // namespace tessera::rules
