#include "tessera/parallel/context/attention_placement.h"

#include "tessera/base/errors.h"
#include "tessera/sharding/local_shape.h"

namespace tessera::parallel {
namespace {

constexpr std::string_view kWho = "context_parallel_attention: ";

void check_shapes(const Sharding& query, const Sharding& key, const Sharding& value) {
  const auto both = [&] {
    return join_text("queries ", query, ", keys ", key, ", values ", value);
  };
  require(query.ndim() == 4 && key.ndim() == 4 && value.ndim() == 4, kWho, both,
          "; give batch x heads x rows x width");
  require(query.mesh() == key.mesh() && query.mesh() == value.mesh(), kWho, both,
          " are on different meshes; redistribute them to one");
  const auto q = query.shape(), k = key.shape(), v = value.shape();
  require(q[0] == k[0] && k[0] == v[0], kWho, both, ": batches differ");
  require(k[1] == v[1] && k[2] == v[2], kWho, both, ": keys and values differ in heads or rows");
  require(q[3] == k[3], kWho, both, ": queries and keys differ in width");
  require(k[1] > 0 && q[1] % k[1] == 0, kWho, both,
          ": heads of queries must be a multiple of heads of keys");
}

void check_axis(const Sharding& query, const Sharding& key, const Sharding& value, int axis) {
  const Placement &q = query.placement(axis), &k = key.placement(axis), &v = value.placement(axis);
  const auto where = [&] {
    return join_text("on axis ", query.mesh().axis_name(axis), " queries are ", q.to_text(),
                     ", keys ", k.to_text(), ", values ", v.to_text());
  };
  require(!q.is_partial() && !k.is_partial() && !v.is_partial(), kWho, where,
          "; redistribute partial ones first");
  require(k == v, kWho, where, "; keys and values must have the same placements");
  require(!q.is_sharded(3) && !k.is_sharded(3), kWho, where,
          "; the width of heads cannot be sharded, redistribute to S2 (rows) or S1 (heads)");
  if (k.is_sharded(kRowDim)) {
    require(q.is_sharded(kRowDim), kWho, where, "; redistribute the queries to S2");
  } else if (k.is_sharded()) {
    require(q.is_sharded(k.dim()), kWho, where, "; queries must be sharded like keys");
  } else {
    require(!q.is_sharded(kBatchDim), kWho, where, "; keys must be sharded over the batch too");
  }
}

/// The heads of keys for query heads [begin, end), `group` of which share one.
Interval key_heads_for(Interval queries, int64_t group) {
  const Interval keys{queries.begin / group, (queries.end + group - 1) / group};
  const bool whole = queries.begin % group == 0 && queries.end % group == 0;
  require(whole || keys.size() == 1, kWho, "query heads ", queries.begin, "..", queries.end - 1,
          " use heads of keys partly (", group,
          " queries share one); shard so that each rank has "
          "whole groups or a part of one");
  return keys;
}

std::optional<Interval> local_key_heads(const Sharding& query, const Sharding& key) {
  const auto& here = query.mesh().my_coordinate();
  if (!here) return std::nullopt;
  const int64_t group = query.shape()[1] / key.shape()[1];
  const auto queries = held_intervals(query, kHeadDim, *here);
  const auto keys = held_intervals(key, kHeadDim, *here);
  if (queries.empty()) return Interval{0, 0};
  require(queries.size() == 1 && keys.size() == 1, kWho, "heads of queries ", query, " and keys ",
          key, " must be contiguous on every rank");
  const Interval used = key_heads_for(queries[0], group);
  require(used.begin >= keys[0].begin && used.end <= keys[0].end, kWho, "query heads ",
          queries[0].begin, "..", queries[0].end - 1, " use heads of keys ", used.begin, "..",
          used.end - 1, ", this rank has ", keys[0].begin, "..", keys[0].end - 1,
          "; shard both by a number of ranks that divides the heads of keys, or replicate keys");
  if (used == keys[0]) return std::nullopt;
  return Interval{used.begin - keys[0].begin, used.end - keys[0].begin};
}

}  // namespace

AttentionPlacement place_attention(const Sharding& query, const Sharding& key,
                                   const Sharding& value) {
  check_shapes(query, key, value);
  AttentionPlacement out;
  for (int axis = 0; axis < query.mesh().ndim(); ++axis) {
    check_axis(query, key, value, axis);
    const Placement& k = key.placement(axis);
    const bool shares = k.is_replicate() && query.placement(axis).is_sharded();
    if (shares) out.partial_axes.push_back(axis);
  }
  const auto axes = key.axes_of_dim(kRowDim);
  out.key_axes.assign(axes.begin(), axes.end());
  out.key_heads = local_key_heads(query, key);
  return out;
}

RowSet rows_at(const Sharding& sharding, const SequenceOrder& order, std::span<const int> at) {
  RowSet out;
  for (const Interval& held : held_intervals(sharding, kRowDim, at)) {
    for (const Interval& part : order.positions_of(held)) out.positions.push_back(part);
    out.mask_rows.push_back(held);
  }
  return out;
}

RowSet sorted_rows(int64_t length, const SequenceOrder& order) {
  if (length == 0) return {};
  return {{{0, length}}, order.rows_of({0, length})};
}

Sharding mask_sharding(const Sharding& query, std::vector<int64_t> mask_shape, DType dtype) {
  std::vector<Placement> placements;
  for (const Placement& p : query.placements()) {
    const bool follows = p.is_sharded() && mask_shape[static_cast<size_t>(p.dim())] > 1;
    placements.push_back(follows ? p : Replicate());
  }
  return {query.mesh(),
          std::move(placements),
          std::move(mask_shape),
          {.dtype = dtype, .order = query.order()}};
}

}  // namespace tessera::parallel
