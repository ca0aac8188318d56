#include "tessera/dtensor/parts/measure.h"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <functional>
#include <numeric>
#include <torch/csrc/distributed/c10d/Backend.hpp>

#include "tessera/base/errors.h"
#include "tessera/base/iota_vector.h"
#include "tessera/comm/world.h"
#include "tessera/observe/call_site.h"
#include "tessera/sharding/dim_intervals.h"
#include "tessera/sharding/local_shape.h"

namespace tessera::dtensor {
namespace {

/// Keeps the message at a fixed size; otherwise ranks would have to agree on a length first.
constexpr int64_t kMaxDims = 16;

/// The metadata of its part that a rank sends.
struct PartMetadata {
  int64_t ndim = 0;
  int64_t dtype = 0;
  int64_t requires_grad = 0;
  std::array<int64_t, kMaxDims> sizes{};
  std::array<int64_t, kMaxDims> order{};  ///< its dims, outermost in memory first
};

/// Row-major order if the strides do not determine another one, or have gaps.
std::vector<int64_t> order_in_memory(const at::Tensor& local) {
  auto order = iota_vector<int64_t>(local.dim());
  if (!local.is_contiguous() && local.is_non_overlapping_and_dense()) {
    std::ranges::stable_sort(order, std::greater<>(), [&](int64_t d) { return local.stride(d); });
  }
  return order;
}

/// Dense strides for this dim order; empty if they are row-major.
std::vector<int64_t> strides_in(std::span<const int64_t> order, std::span<const int64_t> shape) {
  if (std::ranges::is_sorted(order)) return {};
  std::vector<int64_t> strides(shape.size());
  int64_t step = 1;
  for (size_t i = order.size(); i-- > 0;) {
    const auto dim = static_cast<size_t>(order[i]);
    strides[dim] = step;
    step *= std::max<int64_t>(shape[dim], 1);
  }
  return strides;
}

/// The metadata of all ranks, by index into the mesh's ranks.
std::vector<PartMetadata> gather_metadata(const at::Tensor& local, const DeviceMesh& mesh) {
  require(local.dim() <= kMaxDims, "from_local of a tensor with ", local.dim(), " dims; at most ",
          kMaxDims);
  PartMetadata metadata{.ndim = local.dim(),
                        .dtype = static_cast<int64_t>(local.scalar_type()),
                        .requires_grad = local.requires_grad() ? 1 : 0};
  std::ranges::copy(local.sizes(), metadata.sizes.begin());
  std::ranges::copy(order_in_memory(local), metadata.order.begin());
  constexpr auto kWords = static_cast<int64_t>(sizeof(PartMetadata) / sizeof(int64_t));
  at::Tensor mine = at::empty({kWords}, at::kLong);
  std::memcpy(mine.mutable_data_ptr(), &metadata, sizeof(PartMetadata));
  const auto group = comm::group_of(mesh);
  if (mesh.device() == "cuda") mine = mine.to(local.device());
  at::Tensor all = at::empty({kWords * group->size()}, mine.options());
  const comm::CallSite site({.op = "from_local"});
  group->backend(all.device().type())._allgather_base(all, mine)->wait();
  all = all.cpu();
  std::vector<PartMetadata> out(static_cast<size_t>(group->size()));
  std::memcpy(out.data(), all.const_data_ptr(), out.size() * sizeof(PartMetadata));
  return out;
}

std::string sizes_text(const PartMetadata& metadata) {
  return shape_text(std::span(metadata.sizes).first(static_cast<size_t>(metadata.ndim)));
}

void check_alike(const std::vector<PartMetadata>& all, const DeviceMesh& mesh) {
  for (size_t r = 1; r < all.size(); ++r) {
    require(all[r].ndim == all[0].ndim && all[r].dtype == all[0].dtype, "from_local: rank ",
            mesh.ranks()[0], " brings ", sizes_text(all[0]), " of type ", all[0].dtype, ", rank ",
            mesh.ranks()[r], " brings ", sizes_text(all[r]), " of type ", all[r].dtype);
  }
}

/// The size of `dim` as a function of the coordinates on `axes` only; throws if other axes matter.
std::vector<int64_t> sizes_over(const std::vector<PartMetadata>& all, const DeviceMesh& mesh,
                                size_t dim, std::span<const int> axes) {
  int64_t count = 1;
  for (int axis : axes) count *= mesh.size(axis);
  std::vector<int64_t> sizes(static_cast<size_t>(count), -1);
  std::vector<size_t> who(static_cast<size_t>(count), 0);
  for (size_t r = 0; r < all.size(); ++r) {
    const Coordinate coordinate = *mesh.coordinate_of(mesh.ranks()[r]);
    int64_t index = 0;
    for (int axis : axes) index = index * mesh.size(axis) + coordinate[static_cast<size_t>(axis)];
    int64_t& size = sizes[static_cast<size_t>(index)];
    const int64_t mine = all[r].sizes[dim];
    if (size < 0) {
      size = mine;
      who[static_cast<size_t>(index)] = r;
    }
    require(size == mine, "from_local: ranks ", mesh.ranks()[who[static_cast<size_t>(index)]],
            " and ", mesh.ranks()[r], " should hold the same part of dim ", dim, " but bring ",
            sizes_text(all[who[static_cast<size_t>(index)]]), " and ", sizes_text(all[r]));
  }
  return sizes;
}

bool is_chunked(std::span<const int64_t> sizes, int64_t axis_size) {
  for (size_t outer = 0; outer < sizes.size(); outer += static_cast<size_t>(axis_size)) {
    const auto part = sizes.subspan(outer, static_cast<size_t>(axis_size));
    const int64_t n = std::accumulate(part.begin(), part.end(), static_cast<int64_t>(0));
    for (int64_t i = 0; i < axis_size; ++i) {
      if (part[static_cast<size_t>(i)] != chunk_interval(n, axis_size, i).size()) return false;
    }
  }
  return true;
}

/// A strided shard with irregular sizes cannot be described: which rows a rank holds is unknown.
/// All ranks see the same sizes and throw together.
void check_strided(std::span<const int64_t> sizes, const Placement& placement, int64_t ranks) {
  for (size_t outer = 0; outer < sizes.size(); outer += static_cast<size_t>(ranks)) {
    const auto part = sizes.subspan(outer, static_cast<size_t>(ranks));
    const int64_t n = std::accumulate(part.begin(), part.end(), static_cast<int64_t>(0));
    for (int64_t i = 0; i < ranks; ++i) {
      const DimShard one{&placement, static_cast<int>(ranks), static_cast<int>(i)};
      const int64_t said = total_size(dim_intervals(n, std::span(&one, 1)));
      require(part[static_cast<size_t>(i)] == said, "from_local as ", placement,
              ": the ranks bring ", list_text(part), " of dim ", placement.dim(), ", and rank ", i,
              " of the axis has ", said, " of ", n,
              "; give the shape, or describe the parts by a RaggedShard");
    }
  }
}

std::vector<int> axes_on_dim(std::span<const Placement> placements, int dim) {
  std::vector<int> axes;
  for (size_t a = 0; a < placements.size(); ++a) {
    if (placements[a].is_sharded(dim)) axes.push_back(static_cast<int>(a));
  }
  return axes;
}

void normalise(const DeviceMesh& mesh, std::vector<Placement>& placements, int64_t ndim) {
  require(std::ssize(placements) == mesh.ndim(), "from_local: ", placements.size(), " placements (",
          placements_text(placements), ") for mesh ", mesh, ", which has ", mesh.ndim(), " axes");
  for (auto& p : placements) {
    if (!p.is_sharded()) continue;
    const int64_t dim = p.dim() < 0 ? p.dim() + ndim : p.dim();
    require(dim >= 0 && dim < ndim, "from_local: ", p, " of a local tensor with ", ndim, " dims");
    p = p.on_dim(static_cast<int>(dim));
  }
}

}  // namespace

Sharding measure(const at::Tensor& local, const DeviceMesh& mesh,
                 std::vector<Placement> placements) {
  normalise(mesh, placements, local.dim());
  const auto all = gather_metadata(local, mesh);
  check_alike(all, mesh);
  std::vector<int64_t> shape;
  for (int dim = 0; dim < static_cast<int>(local.dim()); ++dim) {
    const auto axes = axes_on_dim(placements, dim);
    auto sizes = sizes_over(all, mesh, static_cast<size_t>(dim), axes);
    // From the innermost axis outwards: the sizes of each level are sums of those of the level
    // inside.
    for (size_t level = axes.size(); level-- > 0;) {
      const int64_t k = mesh.size(axes[level]);
      Placement& p = placements[static_cast<size_t>(axes[level])];
      if (p.kind() == Placement::Kind::strided) {
        check_strided(sizes, p, k);
      } else if (p.kind() == Placement::Kind::ragged || !is_chunked(sizes, k)) {
        p = RaggedShard(dim, sizes);
      }
      std::vector<int64_t> outer(sizes.size() / static_cast<size_t>(k), 0);
      for (size_t i = 0; i < sizes.size(); ++i) outer[i / static_cast<size_t>(k)] += sizes[i];
      sizes = std::move(outer);
    }
    shape.push_back(sizes.front());
  }
  const auto order = std::span(all[0].order).first(shape.size());
  std::vector<int64_t> stride = strides_in(order, shape);
  return Sharding(mesh, std::move(placements), std::move(shape),
                  {.dtype = static_cast<DType>(local.scalar_type()), .stride = std::move(stride)});
}

Sharding assume_even(const at::Tensor& local, const DeviceMesh& mesh,
                     std::vector<Placement> placements) {
  normalise(mesh, placements, local.dim());
  std::vector<int64_t> shape(local.sizes().begin(), local.sizes().end());
  for (size_t a = 0; a < placements.size(); ++a) {
    if (placements[a].is_sharded()) {
      shape[static_cast<size_t>(placements[a].dim())] *= mesh.size(static_cast<int>(a));
    }
  }
  const auto order = order_in_memory(local);
  std::vector<int64_t> stride = strides_in(order, shape);
  return Sharding(mesh, std::move(placements), std::move(shape),
                  {.dtype = static_cast<DType>(local.scalar_type()), .stride = std::move(stride)});
}

void check_metadata(const at::Tensor& local, const DeviceMesh& mesh) {
  const auto all = gather_metadata(local, mesh);
  check_alike(all, mesh);
  for (size_t r = 1; r < all.size(); ++r) {
    require(all[r].requires_grad == all[0].requires_grad, "from_local: of ranks ", mesh.ranks()[0],
            " and ", mesh.ranks()[r],
            " one passes a tensor that requires a gradient, the other does not");
    require(all[r].order == all[0].order, "from_local: ranks ", mesh.ranks()[0], " and ",
            mesh.ranks()[r], " pass tensors whose dims have different orders in memory");
  }
}

}  // namespace tessera::dtensor
