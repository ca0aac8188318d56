#include "tessera/checkpoint/chunks.h"

#include <algorithm>

#include "tessera/base/errors.h"
#include "tessera/dcp/write_plan.h"
#include "tessera/dtensor/dtensor.h"
#include "tessera/dtensor/tensor/lazy.h"
#include "tessera/sharding/local_shape.h"

namespace tessera {
namespace {

Box whole_box(const at::Tensor& tensor) {
  return {std::vector<int64_t>(static_cast<size_t>(tensor.dim()), 0), tensor.sizes().vec()};
}

void require_values(const Sharding& sharding) {
  require(!sharding.has_partial(), "a checkpoint of ", sharding,
          ": a Partial tensor has no values yet; redistribute it to Shard or Replicate first");
}

/// Where [begin, end) of a dim is in the local tensor, if one interval holds all of it.
std::optional<int64_t> local_start(std::span<const Interval> held, int64_t begin, int64_t end) {
  int64_t at = 0;
  for (const auto& interval : held) {
    if (interval.begin <= begin && end <= interval.end) return at + begin - interval.begin;
    at += interval.size();
  }
  return std::nullopt;
}

/// A number of the text that is the same on every machine (FNV-1a).
uint32_t text_hash(std::string_view text) {
  uint32_t hash = 2166136261U;
  for (const char c : text) hash = (hash ^ static_cast<unsigned char>(c)) * 16777619U;
  return hash;
}

}  // namespace

namespace checkpoint {

at::Tensor at_rest(const at::Tensor& tensor) {
  if (dtensor::LazyLocal* lazy = dtensor::lazy_local(tensor)) return lazy->shards().detach();
  return tensor.detach();
}

void about_to_change(const at::Tensor& tensor) {
  if (dtensor::LazyLocal* lazy = dtensor::lazy_local(tensor)) lazy->shards_change();
}

}  // namespace checkpoint

std::vector<Box> chunk_list(const at::Tensor& tensor) {
  if (!is_dtensor(tensor)) {
    if (tensor.numel() == 0) return {};
    return {whole_box(tensor)};
  }
  const Sharding& as = sharding(tensor);
  require_values(as);
  if (!as.mesh().contains_me()) return {};
  return held_boxes(as, *as.mesh().my_coordinate());
}

std::vector<Box> write_items(const std::string& name, const at::Tensor& tensor) {
  if (!is_dtensor(tensor)) return chunk_list(tensor);
  const Sharding& as = sharding(tensor);
  std::vector<dcp::Offer> offers;
  int world_size = 1;
  for (const int rank : as.mesh().ranks()) world_size = std::max(world_size, rank + 1);
  for (auto& held : dcp::all_held_boxes(as)) {
    const auto bytes = static_cast<uint64_t>(held.box.numel() * dtype_bytes(as.dtype()));
    offers.push_back({.entry = 0, .held = std::move(held), .bytes = bytes});
  }
  const int first = static_cast<int>(text_hash(name) % static_cast<uint32_t>(world_size));
  std::vector<Box> out;
  for (auto& write : dcp::plan_writes(std::move(offers),
                                      {.world_size = world_size, .split = false, .first = first})) {
    if (write.writer == as.mesh().my_rank()) out.push_back(std::move(write.box));
  }
  return out;
}

at::Tensor tensor_box(const at::Tensor& tensor, const Box& box) {
  const at::Tensor rest = checkpoint::at_rest(tensor);
  require(box.begin.size() == static_cast<size_t>(rest.dim()), "the box ", box,
          " of a tensor with ", rest.dim(), " dims");
  const bool sharded = is_dtensor(rest);
  if (sharded) {
    require_values(sharding(rest));
    require(sharding(rest).mesh().contains_me(), "this rank holds nothing of ", sharding(rest));
  }
  at::Tensor out = sharded ? to_local(rest) : rest;
  for (int dim = 0; dim < static_cast<int>(box.begin.size()); ++dim) {
    const auto d = static_cast<size_t>(dim);
    const std::vector<Interval> held =
        sharded ? held_intervals(sharding(rest), dim, *sharding(rest).mesh().my_coordinate())
                : std::vector<Interval>{{0, rest.size(dim)}};
    const auto start = local_start(held, box.begin[d], box.end[d]);
    require(start.has_value(), "this rank does not hold the box ", box,
            sharded ? join_text(" of ", sharding(rest)) : " of a plain tensor");
    out = out.narrow(dim, *start, box.end[d] - box.begin[d]);
  }
  return out;
}

at::Tensor tensor_shard(const at::Tensor& tensor, std::span<const int64_t> offset) {
  for (const auto& box : chunk_list(tensor)) {
    if (std::ranges::equal(box.begin, offset)) return tensor_box(tensor, box);
  }
  throw InvalidArgument(join_text("this rank has no part that begins at ", list_text(offset),
                                  is_dtensor(tensor) ? join_text(" of ", sharding(tensor)) : ""));
}

}  // namespace tessera
