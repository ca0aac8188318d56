#include "tessera/parallel/context/head_exchange.h"

#include <algorithm>

#include "tessera/base/errors.h"
#include "tessera/dtensor/autograd.h"
#include "tessera/dtensor/dtensor.h"
#include "tessera/parallel/context/attention_placement.h"
#include "tessera/sharding/local_shape.h"

namespace tessera::parallel {
namespace {

Sharding heads_over(Sharding sharding, const std::vector<int>& axes) {
  for (const int axis : axes) sharding = sharding.with(axis, Shard(kHeadDim));
  return sharding;
}

Sharding with_heads(const Sharding& sharding, int64_t heads) {
  std::vector<int64_t> shape(sharding.shape().begin(), sharding.shape().end());
  shape[kHeadDim] = heads;
  return sharding.with_shape(std::move(shape));
}

/// Whether every rank's heads of queries use exactly its heads of keys.
bool fits(const Sharding& query, const Sharding& key) {
  const int64_t group = query.shape()[kHeadDim] / key.shape()[kHeadDim];
  return std::ranges::all_of(query.mesh().ranks(), [&](int rank) {
    const Coordinate at = *query.mesh().coordinate_of(rank);
    auto keys = held_intervals(key, kHeadDim, at);
    for (Interval& part : keys) part = {part.begin * group, part.end * group};
    return keys == held_intervals(query, kHeadDim, at);
  });
}

int64_t repeats_needed(const Sharding& query, const Sharding& key, const std::vector<int>& axes) {
  const int64_t heads = key.shape()[kHeadDim];
  const int64_t group = query.shape()[kHeadDim] / heads;
  const Sharding to = heads_over(query, axes);
  for (int64_t repeat = 1; repeat <= group; ++repeat) {
    if (group % repeat != 0) continue;
    if (fits(to, heads_over(with_heads(key, heads * repeat), axes))) return repeat;
  }
  throw InvalidArgument(join_text("context_parallel_attention by all_to_all: heads of queries ",
                                  query, " and of keys ", key,
                                  " are sharded differently; use the ring"));
}

at::Tensor repeat_heads_of(const at::Tensor& tensor, int64_t repeat) {
  if (repeat == 1) return tensor;
  const Sharding to = with_heads(sharding(tensor), sharding(tensor).shape()[kHeadDim] * repeat);
  const at::Tensor local = to_local(tensor).repeat_interleave(repeat, kHeadDim);
  const auto want = to.local_shape();
  require(std::ranges::equal(local.sizes(), want),
          "context_parallel_attention by all_to_all: ", sharding(tensor),
          " does not divide its heads evenly over the ranks; use the ring");
  return dtensor::wrap_differentiable(local, to);
}

at::Tensor to_heads(const at::Tensor& tensor, const std::vector<int>& axes) {
  return redistribute(tensor, heads_over(sharding(tensor), axes));
}

}  // namespace

AttentionTensors shard_heads(const AttentionTensors& in, const std::vector<int>& axes) {
  const int64_t repeat = repeats_needed(sharding(in.query), sharding(in.key), axes);
  return {to_heads(in.query, axes), to_heads(repeat_heads_of(in.key, repeat), axes),
          to_heads(repeat_heads_of(in.value, repeat), axes)};
}

}  // namespace tessera::parallel
