#include "tessera/dtensor/ops/sharded_dim_rows.h"

#include <algorithm>

namespace tessera::dtensor {

int named_dim(const rules::OpCall& call, const Sharding& tensor) {
  const int64_t given = call.int_or("dim", 0);
  const int64_t dim = given < 0 ? given + tensor.ndim() : given;
  return dim >= 0 && dim < tensor.ndim() ? static_cast<int>(dim) : -1;
}

std::vector<rules::Row> rows_sharding(const Sharding& tensor, int axis, int dim) {
  // Other numbers than the rule's own letters have: nothing restricts how these dims are nested.
  constexpr int kFirstLetter = 1'000;
  std::vector<rules::Row> out;
  const Placement& now = tensor.placement(axis);
  const int64_t size = tensor.shape()[static_cast<size_t>(dim)];
  const auto add = [&](const Placement& placement) {
    rules::Row row;
    row.operands = {placement};
    row.letter = kFirstLetter + dim;
    row.size = size;
    row.as_is = placement.kind() == Placement::Kind::ragged ? 0 : -1;
    out.push_back(std::move(row));
  };
  if (now.is_sharded(dim) && !now.is_plain_shard()) add(now);
  if (size > 1 || now == Shard(dim)) add(Shard(dim));
  return out;
}

int64_t elements_beside(const Sharding& tensor, int axis, int dim) {
  int64_t out = tensor.numel() / std::max<int64_t>(1, tensor.shape()[static_cast<size_t>(dim)]);
  for (int other = 0; other < tensor.mesh().ndim(); ++other) {
    const Placement& placement = tensor.placement(other);
    if (other == axis || !placement.is_sharded() || placement.is_sharded(dim)) continue;
    out = (out + tensor.mesh().size(other) - 1) / tensor.mesh().size(other);
  }
  return out;
}

int64_t gathered_bytes(const Sharding& tensor, int axis, int64_t of_each) {
  return of_each * (tensor.mesh().size(axis) - 1);
}

}  // namespace tessera::dtensor
