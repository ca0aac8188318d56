#include "tests/support_pure/random_shardings.h"

#include <algorithm>
#include <array>
#include <string>

#include "tessera/base/iota_vector.h"
#include "tests/support_pure/index_oracle.h"

namespace tessera::test {
namespace {

/// `parts` sizes, each of any size, that sum to n.
std::vector<int64_t> random_sizes(Rng& rng, int64_t n, int parts) {
  std::vector<int64_t> ends{n};
  for (int i = 1; i < parts; ++i) ends.push_back(rng.between(0, n));
  std::ranges::sort(ends);
  std::vector<int64_t> sizes;
  int64_t begin = 0;
  for (int64_t end : ends) {
    sizes.push_back(end - begin);
    begin = end;
  }
  return sizes;
}

Placement random_partial(Rng& rng, ReduceOp family) {
  // sum and avg may meet in one tensor, no others.
  return Partial(family == ReduceOp::sum && rng.chance(30) ? ReduceOp::avg : family);
}

Placement random_placement(Rng& rng, const std::vector<int>& dims, ReduceOp family,
                           const RandomOptions& options) {
  const int64_t dice = rng.between(1, 100);
  if (dice <= 25) return Replicate();
  if (dice <= 40 && options.partial) return random_partial(rng, family);
  if (dims.empty()) return Replicate();
  const int dim = rng.one_of(dims);
  if (dice >= 85 && options.strided) return StridedShard(dim, rng.between(2, 5));
  return Shard(dim);
}

/// Makes some of the shards ragged. A table holds the sizes for every outer piece, so dims are
/// walked in nesting order.
void add_ragged(Rng& rng, const DeviceMesh& mesh, std::span<const int64_t> shape,
                const std::vector<int>& order, std::vector<Placement>& placements) {
  for (int dim = 0; dim < std::ssize(shape); ++dim) {
    std::vector<int64_t> pieces{shape[static_cast<size_t>(dim)]};
    for (int axis : order) {
      Placement& p = placements[static_cast<size_t>(axis)];
      if (!p.is_sharded(dim)) continue;
      const int k = mesh.size(axis);
      if (p.is_plain_shard() && rng.chance(50)) {
        std::vector<int64_t> table;
        for (int64_t piece : pieces) {
          const auto sizes = random_sizes(rng, piece, k);
          table.insert(table.end(), sizes.begin(), sizes.end());
        }
        p = RaggedShard(dim, table);
      }
      std::vector<int64_t> inner;
      for (size_t outer = 0; outer < pieces.size(); ++outer) {
        for (int c = 0; c < k; ++c) {
          inner.push_back(std::ssize(
              oracle_shard(iota_indexes(pieces[outer]), p, k, c, static_cast<int64_t>(outer))));
        }
      }
      pieces = std::move(inner);
    }
  }
}

std::vector<int64_t> random_stride(Rng& rng, const std::vector<int64_t>& shape) {
  std::vector<size_t> nesting = iota_vector(shape.size());
  rng.shuffle(nesting);
  std::vector<int64_t> out(shape.size(), 0);
  int64_t stride = 1;
  for (size_t dim : nesting) {
    if (rng.chance(15)) continue;  // expanded
    out[dim] = stride;
    stride *= std::max<int64_t>(shape[dim], 1);
  }
  return out;
}

}  // namespace

DeviceMesh random_mesh(Rng& rng, int max_axes, int max_ranks) {
  const std::array<std::string, 8> names = {"dp", "tp", "pp", "ep", "cp", "sp", "a_6", "a_7"};
  const int count = rng.int_between(1, std::min(max_axes, static_cast<int>(names.size())));
  std::vector<MeshAxis> axes;
  int ranks = 1;
  for (int i = 0; i < count; ++i) {
    const int size = rng.int_between(1, std::min(5, max_ranks / ranks));
    axes.push_back({names[static_cast<size_t>(i)], size});
    ranks *= size;
  }
  rng.shuffle(axes);
  return DeviceMesh(std::move(axes));
}

DeviceMesh with_random_ranks(Rng& rng, const DeviceMesh& mesh) {
  std::vector<int> ranks = iota_vector<int>(mesh.size() + rng.int_between(0, 6));
  if (rng.chance(70)) rng.shuffle(ranks);
  ranks.erase(ranks.begin(), ranks.end() - mesh.size());
  return DeviceMesh({mesh.axes().begin(), mesh.axes().end()}, std::move(ranks), mesh.device());
}

std::vector<int64_t> random_shape(Rng& rng, int max_dims, int64_t max_numel) {
  std::vector<int64_t> shape(static_cast<size_t>(rng.between(0, max_dims)));
  int64_t numel = 1;
  for (auto& size : shape) {
    const int64_t dice = rng.between(1, 100);
    size = dice <= 4 ? 0 : dice <= 15 ? 1 : dice <= 75 ? rng.between(2, 6) : rng.between(7, 13);
    size = std::min(size, std::max<int64_t>(max_numel / numel, 1));
    numel *= std::max<int64_t>(size, 1);
  }
  rng.shuffle(shape);
  return shape;
}

Sharding random_sharding(Rng& rng, const DeviceMesh& mesh, const std::vector<int64_t>& shape,
                         const RandomOptions& options) {
  std::vector<int> dims = iota_vector<int>(shape.size());  // that may be sharded
  // Often few, so that several axes meet on one dim.
  rng.shuffle(dims);
  if (!dims.empty() && rng.chance(50)) dims.resize(1);
  const auto family = rng.chance(50)
                          ? ReduceOp::sum
                          : rng.one_of<ReduceOp>({ReduceOp::max, ReduceOp::min, ReduceOp::product,
                                                  ReduceOp::band, ReduceOp::bor, ReduceOp::bxor});
  std::vector<Placement> placements;
  for (int axis = 0; axis < mesh.ndim(); ++axis) {
    placements.push_back(random_placement(rng, dims, family, options));
  }
  ShardingOptions made;
  made.order = iota_vector<int>(mesh.ndim());
  if (options.order && rng.chance(60)) rng.shuffle(made.order);
  if (options.ragged && rng.chance(50)) add_ragged(rng, mesh, shape, made.order, placements);
  if (options.stride && rng.chance(60)) made.stride = random_stride(rng, shape);
  if (options.dtype) {
    made.dtype = rng.one_of<DType>({DType::f32, DType::bf16, DType::f64, DType::i64, DType::u8,
                                    DType::boolean, DType::c64, DType::f8_e4m3fn});
  }
  return Sharding(mesh, std::move(placements), shape, std::move(made));
}

Sharding random_sharding_like(Rng& rng, const Sharding& sharding, const RandomOptions& options) {
  RandomOptions placing = options;
  placing.stride = placing.dtype = false;
  const Sharding other = random_sharding(
      rng, sharding.mesh(), {sharding.shape().begin(), sharding.shape().end()}, placing);
  return sharding.with_placements({other.placements().begin(), other.placements().end()},
                                  other.order());
}

Coordinate random_coordinate(Rng& rng, const DeviceMesh& mesh) {
  Coordinate coordinate;
  for (const auto& axis : mesh.axes()) coordinate.push_back(rng.int_between(0, axis.size - 1));
  return coordinate;
}

std::vector<Coordinate> all_coordinates(const DeviceMesh& mesh) {
  std::vector<Coordinate> all{{}};
  for (const auto& axis : mesh.axes()) {
    std::vector<Coordinate> grown;
    for (const auto& coordinate : all) {
      for (int i = 0; i < axis.size; ++i) {
        grown.push_back(coordinate);
        grown.back().push_back(i);
      }
    }
    all = std::move(grown);
  }
  return all;
}

}  // namespace tessera::test
