#include "tests/support_pure/index_oracle.h"

#include <algorithm>

namespace tessera::test {

Indexes iota_indexes(int64_t n) {
  Indexes list;
  for (int64_t i = 0; i < n; ++i) list.push_back(i);
  return list;
}

std::vector<Indexes> oracle_chunk(const Indexes& list, int64_t count) {
  int64_t step = 0;  // the least with which `count` chunks take all
  while (step * count < std::ssize(list)) ++step;
  std::vector<Indexes> chunks(static_cast<size_t>(count));
  for (size_t i = 0; i < list.size(); ++i) {
    chunks[i / static_cast<size_t>(step)].push_back(list[i]);
  }
  return chunks;
}

Indexes oracle_shard(const Indexes& list, const Placement& placement, int axis_size, int coordinate,
                     int64_t outer) {
  Indexes held;
  switch (placement.kind()) {
    case Placement::Kind::shard:
      return oracle_chunk(list, axis_size)[static_cast<size_t>(coordinate)];
    case Placement::Kind::strided:
      for (const auto& piece : oracle_chunk(list, placement.split())) {
        const auto part = oracle_chunk(piece, axis_size)[static_cast<size_t>(coordinate)];
        held.insert(held.end(), part.begin(), part.end());
      }
      return held;
    case Placement::Kind::ragged: {
      auto at = list.begin();
      for (int c = 0; c <= coordinate; ++c) {
        const auto size = placement.sizes()[static_cast<size_t>(outer * axis_size + c)];
        if (c == coordinate) held.assign(at, at + size);
        at += size;
      }
      return held;
    }
    default:
      return list;
  }
}

Indexes oracle_held(const Sharding& sharding, int dim, std::span<const int> coordinate) {
  Indexes held = iota_indexes(sharding.shape()[static_cast<size_t>(dim)]);
  int64_t outer = 0;
  for (int axis : sharding.axes_of_dim(dim)) {
    const int size = sharding.mesh().size(axis);
    const int mine = coordinate[static_cast<size_t>(axis)];
    held = oracle_shard(held, sharding.placement(axis), size, mine, outer);
    outer = outer * size + mine;
  }
  return held;
}

Indexes oracle_elements(const Sharding& sharding, std::span<const int> coordinate) {
  Indexes elements{0};
  for (int dim = 0; dim < sharding.ndim(); ++dim) {
    const Indexes held = oracle_held(sharding, dim, coordinate);
    Indexes grown;
    for (int64_t element : elements) {
      for (int64_t index : held) {
        grown.push_back(element * sharding.shape()[static_cast<size_t>(dim)] + index);
      }
    }
    elements = std::move(grown);
  }
  return elements;
}

}  // namespace tessera::test
