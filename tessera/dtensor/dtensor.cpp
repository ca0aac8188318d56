#include "tessera/dtensor/dtensor.h"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <iostream>
#include <sstream>
#include <utility>

#include "tessera/base/errors.h"
#include "tessera/comm/world.h"
#include "tessera/dtensor/autograd.h"
#include "tessera/dtensor/buckets.h"
#include "tessera/dtensor/distribute_all.h"
#include "tessera/dtensor/parts/measure.h"
#include "tessera/dtensor/parts/scatter.h"
#include "tessera/dtensor/tensor/layout.h"
#include "tessera/dtensor/tensor/sharded_tensor.h"
#include "tessera/dtensor/tensor/view_origin.h"
#include "tessera/exec/redistribute.h"
#include "tessera/observe/call_site.h"
#include "tessera/sharding/local_shape.h"
#include "tessera/sharding/mesh_order.h"

namespace tessera {
namespace {

using dtensor::sharded_meta;
using dtensor::ShardedMeta;

const ShardedMeta& meta_or_throw(const at::Tensor& tensor, std::string_view function) {
  const ShardedMeta* meta = sharded_meta(tensor);
  require(meta != nullptr, function, " needs a sharded tensor, got ",
          tensor.defined() ? join_text("a plain one of shape ", shape_text(tensor.sizes()))
                           : std::string("an undefined one"));
  require(meta->local().defined(), function,
          " of a view of a tensor that is gathered on demand (fully_shard): ",
          "take the view of its to_local or full_tensor");
  return *meta;
}

DType dtype_of(const at::Tensor& tensor) { return static_cast<DType>(tensor.scalar_type()); }

constexpr std::string_view kNotUnreduced =
    ": a value cannot be un-reduced; a Partial is what an op leaves behind";

void refuse_partial(std::span<const Placement> placements, std::string_view function) {
  for (const auto& p : placements) {
    require(!p.is_partial(), function, " to ", placements_text(placements), kNotUnreduced);
  }
}

/// An axis may stay Partial while others change.
void refuse_new_partial(const Sharding& from, const Sharding& to) {
  for (int axis = 0; axis < to.mesh().ndim(); ++axis) {
    const Placement& p = to.placement(axis);
    const bool had = from.mesh() == to.mesh() && from.placement(axis) == p;
    require(had || !p.is_partial(), "Can not redistribute ", from, " to ",
            placements_text(to.placements()), kNotUnreduced);
  }
}

/// The part of a rank outside the mesh.
at::Tensor empty_part(const at::Tensor& like, const Sharding& sharding) {
  return at::empty(at::IntArrayRef(sharding.local_shape().data(), sharding.local_shape().size()),
                   like.options());
}

/// The strides of a channels_last tensor; empty for any other, which becomes row-major.
std::vector<int64_t> stride_to_keep(const at::Tensor& full) {
  const auto format = full.suggest_memory_format();
  if (format == at::MemoryFormat::Contiguous || !full.is_contiguous(format)) return {};
  return full.strides().vec();
}

Sharding sharding_of_full(const at::Tensor& full, const DeviceMesh& mesh,
                          std::vector<Placement> placements) {
  return {mesh,
          std::move(placements),
          full.sizes().vec(),
          {.dtype = dtype_of(full), .stride = stride_to_keep(full)}};
}

/// Whether this rank takes part in sending a full tensor from the source rank.
bool is_sent(const at::Tensor& full, const DeviceMesh& mesh, const DistributeOptions& options) {
  return options.source && mesh.contains_me() && mesh.size() > 1 && !full.is_meta();
}

/// This rank's part of a full tensor that need not be sent, in memory of its own.
at::Tensor part_without_messages(const at::Tensor& full, const Sharding& as) {
  if (!as.mesh().contains_me()) return empty_part(full, as);
  const at::Tensor part = exec::redistribute(full.contiguous(), as.replicated(), as);
  return part.is_alias_of(full) ? part.clone() : part;
}

void require_ranks(const DeviceMesh& mesh, const char* function) {
  require(mesh.defined(), function, " needs a mesh");
  require(
      mesh.world() != nullptr, function, " on mesh ", mesh,
      ", which was only parsed: it has no ranks. Make it with init_device_mesh; to plan without "
      "ranks, in a world of fake ones (fake_world)");
}

bool needs_measuring(const DeviceMesh& mesh, std::span<const Placement> placements) {
  const bool shards = std::ranges::any_of(placements, [](const auto& p) { return p.is_sharded(); });
  return shards && mesh.size() > 1 && mesh.world() != nullptr &&
         comm::world_of(mesh).kind() != comm::RankWorld::Kind::fake;
}

Sharding target_of(const Sharding& from, const Sharding& to, const RedistributeOptions& options) {
  require(
      from.mesh().world() == to.mesh().world(), "redistribute ", from, " to mesh ", to.mesh(),
      " of another world: its ranks are not these; a mesh that was only parsed has none. Make it "
      "with init_device_mesh, or derive it from the tensor's mesh");
  refuse_new_partial(from, to);
  return to.with_dtype(options.forward_dtype ? static_cast<DType>(*options.forward_dtype)
                                             : from.dtype());
}

}  // namespace

bool is_dtensor(const at::Tensor& tensor) { return sharded_meta(tensor) != nullptr; }

const Sharding& sharding(const at::Tensor& tensor) {
  return meta_or_throw(tensor, "sharding").sharding();
}

std::vector<Placement> placements(const at::Tensor& tensor) {
  return placements_in_mesh_order(meta_or_throw(tensor, "placements").sharding());
}

const DeviceMesh& device_mesh(const at::Tensor& tensor) {
  return meta_or_throw(tensor, "device_mesh").sharding().mesh();
}

std::span<const int64_t> local_shape(const at::Tensor& tensor) {
  return meta_or_throw(tensor, "local_shape").sharding().local_shape();
}

std::span<const int64_t> local_offset(const at::Tensor& tensor) {
  return meta_or_throw(tensor, "local_offset").sharding().local_offset();
}

at::Tensor from_local(const at::Tensor& local, const DeviceMesh& mesh,
                      std::vector<Placement> placements, const FromLocalOptions& options) {
  require(local.defined() && !is_dtensor(local), "from_local needs a plain tensor");
  dtensor::require_strided("from_local", local);
  require_ranks(mesh, "from_local");
  Sharding as;
  if (options.shape) {
    as = Sharding(
        mesh, std::move(placements), *options.shape,
        {.dtype = dtype_of(local), .stride = options.stride.value_or(std::vector<int64_t>())});
  } else if (!mesh.contains_me()) {
    throw InvalidArgument(
        join_text("from_local on a rank outside mesh ", mesh, " needs the global shape"));
  } else if (!options.even && needs_measuring(mesh, placements)) {
    as = dtensor::measure(local, mesh, std::move(placements));
  } else {
    as = dtensor::assume_even(local, mesh, std::move(placements));
  }
  require(!mesh.contains_me() || std::ranges::equal(local.sizes(), as.local_shape()),
          "from_local: the local tensor is ", shape_text(local.sizes()), ", this rank's part of ",
          as, " is ", shape_text(as.local_shape()));
  if (options.run_check && mesh.contains_me() && mesh.size() > 1) {
    dtensor::check_metadata(local, mesh);
    dtensor::check_replicas(local, as);
  }
  const at::Tensor part = mesh.contains_me() ? local : empty_part(local, as);
  const Sharding grad = options.grad_placements.empty()
                            ? dtensor::gradient_sharding(as)
                            : as.with_placements(options.grad_placements);
  return dtensor::wrap_differentiable(part, as, grad);
}

at::Tensor to_local(const at::Tensor& tensor, const ToLocalOptions& options) {
  const Sharding& as = meta_or_throw(tensor, "to_local").sharding();
  dtensor::refresh(tensor);
  const Sharding grad = options.grad_placements.empty()
                            ? dtensor::gradient_sharding(as)
                            : as.with_placements(options.grad_placements);
  return dtensor::unwrap_differentiable(tensor, grad);
}

at::Tensor redistribute(const at::Tensor& tensor, const Sharding& to,
                        const RedistributeOptions& options) {
  const Sharding& from = meta_or_throw(tensor, "redistribute").sharding();
  if (from == to && !options.forward_dtype && !options.backward_dtype) return tensor;
  dtensor::refresh(tensor);
  return dtensor::move_differentiable(tensor, target_of(from, to, options), options.backward_dtype);
}

at::Tensor redistribute(const at::Tensor& tensor, std::vector<Placement> placements,
                        const RedistributeOptions& options) {
  const Sharding& from = meta_or_throw(tensor, "redistribute").sharding();
  if (describes_same_parts(placements, from) && !options.forward_dtype && !options.backward_dtype)
    return tensor;
  return redistribute(tensor, from.with_placements(std::move(placements)), options);
}

at::Tensor redistribute(const at::Tensor& tensor, const DeviceMesh& mesh,
                        std::vector<Placement> placements, const RedistributeOptions& options) {
  const Sharding& from = meta_or_throw(tensor, "redistribute").sharding();
  const Sharding to(
      mesh, std::move(placements), {from.shape().begin(), from.shape().end()},
      {.dtype = from.dtype(), .stride = {from.stride().begin(), from.stride().end()}});
  return redistribute(tensor, to, options);
}

PendingTensor redistribute_async(const at::Tensor& tensor, const Sharding& to,
                                 const RedistributeOptions& options) {
  const ShardedMeta& meta = meta_or_throw(tensor, "redistribute_async");
  dtensor::refresh(tensor);
  const Sharding target = target_of(meta.sharding(), to, options);
  return {tensor, target, exec::redistribute_async(meta.local(), meta.sharding(), target),
          options.backward_dtype};
}

PendingTensor redistribute_async(const at::Tensor& tensor, std::vector<Placement> placements,
                                 const RedistributeOptions& options) {
  const Sharding& from = meta_or_throw(tensor, "redistribute_async").sharding();
  return redistribute_async(tensor, from.with_placements(std::move(placements)), options);
}

PendingTensor::PendingTensor(at::Tensor tensor, Sharding to, exec::Pending pending,
                             std::optional<at::ScalarType> backward_dtype)
    : tensor_(std::move(tensor)),
      to_(std::move(to)),
      pending_(std::move(pending)),
      backward_dtype_(backward_dtype) {}

at::Tensor PendingTensor::wait() {
  return dtensor::moved_differentiable(
      tensor_, [this] { return dtensor::wrap(pending_.wait(), to_); }, backward_dtype_);
}

bool PendingTensor::done() const { return pending_.done(); }

at::Tensor full_tensor(const at::Tensor& tensor, const ToLocalOptions& options) {
  const Sharding& from = meta_or_throw(tensor, "full_tensor").sharding();
  return to_local(redistribute(tensor, from.replicated()), options);
}

at::Tensor distribute_tensor(const at::Tensor& full, const DeviceMesh& mesh,
                             std::vector<Placement> placements, const DistributeOptions& options) {
  require(full.defined(), "distribute_tensor: an undefined tensor");
  require_ranks(mesh, "distribute_tensor");
  if (is_dtensor(full)) {
    const Sharding& has = sharding(full);
    require(has.mesh() == mesh && describes_same_parts(placements, has),
            "distribute_tensor of a tensor that is sharded already, ", has, "; use redistribute");
    return full;
  }
  refuse_partial(placements, "distribute_tensor");
  dtensor::require_strided("distribute_tensor", full);
  require(full.is_leaf(),
          "distribute_tensor needs a leaf: a tensor that autograd computed keeps its "
          "history only through from_local");
  const bool requires_grad = full.requires_grad();
  const at::Tensor data = full.detach();
  const Sharding as = sharding_of_full(data, mesh, std::move(placements));
  const at::Tensor part = is_sent(data, mesh, options)
                              ? dtensor::scatter_from(data, *options.source, as)
                              : part_without_messages(data, as);
  at::Tensor out = dtensor::wrap(dtensor::strided_as(part, as), as);
  out.set_requires_grad(requires_grad);
  return out;
}

std::vector<at::Tensor> dtensor::distribute_all(std::span<const at::Tensor> fulls,
                                                const DeviceMesh& mesh,
                                                const std::vector<Placement>& placements,
                                                const DistributeOptions& options) {
  require_ranks(mesh, "distribute_tensor");
  refuse_partial(placements, "distribute_tensor");
  std::vector<Sharding> shardings;
  std::vector<at::Tensor> sent;
  std::vector<Sharding> sent_shardings;
  for (const at::Tensor& full : fulls) {
    shardings.push_back(sharding_of_full(full, mesh, placements));
    if (!is_sent(full, mesh, options)) continue;
    sent.push_back(full.contiguous());
    sent_shardings.push_back(shardings.back());
  }
  std::vector<at::Tensor> received;
  if (!sent.empty()) received = scatter_all_from(sent, *options.source, sent_shardings);
  std::vector<at::Tensor> out;
  size_t next = 0;
  for (size_t i = 0; i < fulls.size(); ++i) {
    at::Tensor part;
    if (is_sent(fulls[i], mesh, options)) {
      part = std::exchange(received[next++], {});
      if (part.storage().nbytes() > part.nbytes()) part = part.clone();
    } else {
      part = part_without_messages(fulls[i], shardings[i]);
    }
    out.push_back(wrap(strided_as(part, shardings[i]), shardings[i]));
  }
  return out;
}

std::string to_text(const at::Tensor& tensor) {
  std::ostringstream values;
  const ShardedMeta* meta = sharded_meta(tensor);
  values << (meta != nullptr ? meta->local() : tensor);
  if (meta == nullptr) return values.str();
  const Sharding& as = meta->sharding();
  const auto rank = as.mesh().my_rank();
  return join_text("DTensor ", as, ", local ", shape_text(as.local_shape()), " at ",
                   list_text(as.local_offset()),
                   rank ? join_text(" on rank ", *rank) : std::string(), "\n", values.str());
}

void print(const at::Tensor& tensor) { std::cout << to_text(tensor) << "\n"; }

}  // namespace tessera
