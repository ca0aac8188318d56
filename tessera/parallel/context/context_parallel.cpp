#include "tessera/parallel/context/context_parallel.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "tessera/base/errors.h"
#include "tessera/comm/world.h"
#include "tessera/dtensor/autograd.h"
#include "tessera/dtensor/dtensor.h"
#include "tessera/mesh/axes_text.h"
#include "tessera/observe/call_site.h"
#include "tessera/parallel/context/attention_placement.h"
#include "tessera/parallel/context/head_exchange.h"
#include "tessera/parallel/context/ring_attention.h"

namespace tessera {
namespace {

using parallel::AttentionPlacement;
using parallel::AttentionTensors;
using parallel::DocumentOffsets;
using parallel::RingProblem;
using parallel::RowSet;

constexpr std::string_view kContextSite = "context_parallel_attention";
constexpr auto kMethodNames = std::to_array<std::string_view>({"ring", "all_gather", "all_to_all"});

void check_documents(const std::vector<DocumentOffsets>& documents, const Sharding& query,
                     const Sharding& key) {
  const int64_t length = query.shape()[2];
  require(documents.size() <= 1 || static_cast<int64_t>(documents.size()) == query.shape()[0],
          kContextSite, ": ", documents.size(), " lists of documents for a batch of ",
          query.shape()[0], "; give one list, or one for each row of the batch");
  for (const DocumentOffsets& offsets : documents) {
    require(length == key.shape()[2], kContextSite, ": documents need as many queries (", length,
            ") as keys (", key.shape()[2], ")");
    require(offsets.size() >= 2 && offsets.front() == 0 && offsets.back() == length &&
                std::ranges::is_sorted(offsets),
            kContextSite, ": document offsets ", list_text(offsets),
            " must ascend from 0 to the sequence length ", length);
  }
}

/// The lists of the local rows of the batch.
std::vector<DocumentOffsets> local_documents(const std::vector<DocumentOffsets>& documents,
                                             const Sharding& query) {
  if (documents.size() <= 1) return documents;
  std::vector<DocumentOffsets> out;
  for (const Interval& part :
       held_intervals(query, parallel::kBatchDim, *query.mesh().my_coordinate())) {
    for (int64_t row = part.begin; row < part.end; ++row) {
      out.push_back(documents[static_cast<size_t>(row)]);
    }
  }
  return out;
}

/// This rank's part of the mask, with 4 dims.
at::Tensor local_mask(at::Tensor mask, const Sharding& query, const Sharding& key) {
  if (!mask.defined()) return {};
  require(mask.dim() <= 4 && !mask.requires_grad(), kContextSite,
          ": a mask has at most 4 dims and gets no gradient; detach() it");
  while (mask.dim() < 4) mask = mask.unsqueeze(0);
  const std::array<int64_t, 4> full = {query.shape()[0], query.shape()[1], query.shape()[2],
                                       key.shape()[2]};
  for (int64_t dim = 0; dim < 4; ++dim) {
    const int64_t want = full[static_cast<size_t>(dim)];
    require(mask.size(dim) == 1 || mask.size(dim) == want, kContextSite, ": dim ", dim,
            " of the mask has ", mask.size(dim), " elements, not 1 or ", want);
  }
  const Sharding to =
      parallel::mask_sharding(query, mask.sizes().vec(), static_cast<DType>(mask.scalar_type()));
  if (!is_dtensor(mask)) {
    const std::vector<Placement> replicated(static_cast<size_t>(to.mesh().ndim()), Replicate());
    mask = distribute_tensor(mask, to.mesh(), replicated, {.source = std::nullopt});
  }
  require(device_mesh(mask) == to.mesh(), kContextSite, ": the mask is on mesh ", device_mesh(mask),
          ", queries on ", to.mesh(), "; redistribute it");
  return to_local(redistribute(mask, to));
}

/// The keys of each rank of the group that rotates them, or all keys if there is none.
std::vector<RowSet> key_rows(const Sharding& key, const comm::Group* group,
                             const SequenceOrder& order) {
  if (group == nullptr) return {parallel::sorted_rows(key.shape()[2], order)};
  std::vector<RowSet> out;
  for (const int rank : group->ranks()) {
    out.push_back(parallel::rows_at(key, order, *key.mesh().coordinate_of(rank)));
  }
  return out;
}

bool holds_all_rows(const Sharding& sharding) {
  return sharding.axes_of_dim(parallel::kRowDim).empty();
}

/// The local heads of keys or values that the local queries use.
at::Tensor local_keys(const at::Tensor& tensor, const AttentionPlacement& placed) {
  Sharding grad = dtensor::gradient_sharding(sharding(tensor));
  for (const int axis : placed.partial_axes) grad = grad.with(axis, Partial());
  const at::Tensor local = dtensor::unwrap_differentiable(tensor, grad);
  if (!placed.key_heads) return local;
  return local.narrow(parallel::kHeadDim, placed.key_heads->begin, placed.key_heads->size());
}

/// Attention on the local tensors; what is missing rotates.
at::Tensor attend_locally(const AttentionTensors& tensors, const AttentionOptions& attention,
                          const ContextParallelOptions& options) {
  const Sharding &query = sharding(tensors.query), &key = sharding(tensors.key);
  const AttentionPlacement placed = parallel::place_attention(query, key, sharding(tensors.value));
  auto out_shape = std::vector<int64_t>(query.shape().begin(), query.shape().end());
  out_shape[3] = sharding(tensors.value).shape()[3];
  const Sharding out_sharding = query.with_shape(out_shape);
  at::Tensor q = dtensor::unwrap_differentiable(tensors.query, dtensor::gradient_sharding(query));
  at::Tensor k = local_keys(tensors.key, placed);
  at::Tensor v = local_keys(tensors.value, placed);
  if (!query.mesh().contains_me()) return dtensor::wrap_differentiable(q, out_sharding);
  auto problem = std::make_shared<RingProblem>();
  problem->block = {
      .causal = attention.is_causal,
      .scale = attention.scale.value_or(1 / std::sqrt(static_cast<double>(query.shape()[3]))),
      .kernel = options.kernel,
      .documents = local_documents(options.documents, query),
      .mask = local_mask(attention.mask, query, key),
      .mask_function = attention.mask_function};
  if (!placed.key_axes.empty()) problem->group = comm::group_of(key.mesh(), placed.key_axes);
  problem->axis = axes_text(key.mesh(), placed.key_axes);
  problem->keys = key_rows(key, problem->group.get(), options.order);
  // Rows that are all here are sorted by position: fewer and larger calls of the kernel.
  const bool sorts_queries = holds_all_rows(query);
  if (problem->group == nullptr) {
    k = restore_sequence(k, parallel::kRowDim, options.order);
    v = restore_sequence(v, parallel::kRowDim, options.order);
  }
  if (sorts_queries) q = restore_sequence(q, parallel::kRowDim, options.order);
  problem->block.queries =
      sorts_queries ? parallel::sorted_rows(query.shape()[2], options.order)
                    : parallel::rows_at(query, options.order, *query.mesh().my_coordinate());
  if (!sorts_queries) {  // the mask has the local rows alone
    problem->block.queries.mask_rows = {{0, q.size(2)}};
  }
  at::Tensor out = parallel::ring_attention(q, k, v, std::move(problem));
  if (sorts_queries) out = reorder_sequence(out, parallel::kRowDim, options.order);
  return dtensor::wrap_differentiable(out.contiguous(), out_sharding);
}

at::Tensor gather_rows(const at::Tensor& tensor, const std::vector<int>& axes) {
  Sharding to = sharding(tensor);
  for (const int axis : axes) to = to.with(axis, Replicate());
  return redistribute(tensor, to);
}

}  // namespace

std::string_view context_method_name(ContextMethod method) {
  return kMethodNames[static_cast<size_t>(method)];
}

ContextMethod context_method_from_name(std::string_view name) {
  for (size_t i = 0; i < kMethodNames.size(); ++i) {
    if (kMethodNames[i] == name) return static_cast<ContextMethod>(i);
  }
  throw InvalidArgument(join_text("no method '", name,
                                  "' of context parallelism; there are ring, all_gather, "
                                  "all_to_all"));
}

at::Tensor context_parallel_attention(const at::Tensor& query, const at::Tensor& key,
                                      const at::Tensor& value, const AttentionOptions& attention,
                                      const ContextParallelOptions& options) {
  require(is_dtensor(query) && is_dtensor(key) && is_dtensor(value), kContextSite,
          ": queries, keys and values must be sharded; distribute_tensor or from_local them");
  const comm::CallSite site({.op = kContextSite});
  const AttentionPlacement placed =
      parallel::place_attention(sharding(query), sharding(key), sharding(value));
  options.order.check_length(sharding(query).shape()[2]);
  options.order.check_length(sharding(key).shape()[2]);
  check_documents(options.documents, sharding(query), sharding(key));
  if (options.method == ContextMethod::ring || placed.key_axes.empty()) {
    return attend_locally({query, key, value}, attention, options);
  }
  if (options.method == ContextMethod::all_gather) {
    return attend_locally(
        {query, gather_rows(key, placed.key_axes), gather_rows(value, placed.key_axes)}, attention,
        options);
  }
  if (attention.mask.defined() && attention.mask.dim() >= 2 && attention.mask.size(-2) > 1) {
    throw NotSupported(
        "context_parallel_attention by all_to_all: every rank would hold the mask of all queries; "
        "use the ring, or give a mask_function");
  }
  const at::Tensor out = attend_locally(parallel::shard_heads({query, key, value}, placed.key_axes),
                                        attention, options);
  const Sharding back =
      sharding(query).with_shape({sharding(out).shape().begin(), sharding(out).shape().end()});
  return redistribute(out, back);
}

}  // namespace tessera
