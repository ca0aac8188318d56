#include "tessera/dtensor/measure.h"

#include <ATen/ops/empty.h>

#include <numeric>
#include <torch/csrc/distributed/c10d/Backend.hpp>

#include "tessera/base/errors.h"
#include "tessera/comm/call_site.h"
#include "tessera/comm/world.h"
#include "tessera/sharding/local_shape.h"

namespace tessera::dtensor {
namespace {

/// Everyone's (dims, dtype, sizes), by index into the mesh's ranks, in one message of fixed size:
/// more dims would need the ranks to agree on a count first.
constexpr int64_t kMaxDims = 16;

std::vector<std::vector<int64_t>> gather_sizes(const at::Tensor& local, const DeviceMesh& mesh) {
  require(local.dim() <= kMaxDims, "from_local of a tensor with ", local.dim(), " dims; at most ",
          kMaxDims);
  const auto count = kMaxDims + 2;
  at::Tensor mine = at::empty({count}, at::kLong);
  auto* words = mine.mutable_data_ptr<int64_t>();
  std::fill(words, words + count, 0);
  words[0] = local.dim();
  words[1] = static_cast<int64_t>(local.scalar_type());
  for (int64_t d = 0; d < local.dim(); ++d) words[2 + d] = local.size(d);
  std::vector<int> axes(static_cast<size_t>(mesh.ndim()));
  std::iota(axes.begin(), axes.end(), 0);
  const auto group = comm::group_of(mesh, axes);
  if (mesh.device() == "cuda") mine = mine.to(local.device());
  at::Tensor all = at::empty({count * group->size()}, mine.options());
  const comm::CallSite site({.op = "from_local", .implicit = true});
  group->backend(all.device().type())._allgather_base(all, mine)->wait();
  all = all.cpu();
  std::vector<std::vector<int64_t>> out;
  const auto* read = all.const_data_ptr<int64_t>();
  for (int r = 0; r < group->size(); ++r)
    out.emplace_back(read + r * count, read + (r + 1) * count);
  return out;
}

std::string sizes_text(const std::vector<int64_t>& words) {
  return shape_text(std::span<const int64_t>(words).subspan(2, static_cast<size_t>(words[0])));
}

void check_alike(const std::vector<std::vector<int64_t>>& all, const DeviceMesh& mesh) {
  for (size_t r = 1; r < all.size(); ++r) {
    require(all[r][0] == all[0][0] && all[r][1] == all[0][1], "from_local: rank ", mesh.ranks()[0],
            " brings ", sizes_text(all[0]), " of type ", all[0][1], ", rank ", mesh.ranks()[r],
            " brings ", sizes_text(all[r]), " of type ", all[r][1]);
  }
}

/// The size of `dim` as a function of the coordinates on `axes` alone; throws if others matter.
std::vector<int64_t> sizes_over(const std::vector<std::vector<int64_t>>& all,
                                const DeviceMesh& mesh, size_t dim, std::span<const int> axes) {
  int64_t count = 1;
  for (int axis : axes) count *= mesh.size(axis);
  std::vector<int64_t> sizes(static_cast<size_t>(count), -1);
  std::vector<size_t> who(static_cast<size_t>(count), 0);
  for (size_t r = 0; r < all.size(); ++r) {
    const Coordinate coordinate = *mesh.coordinate_of(mesh.ranks()[r]);
    int64_t index = 0;
    for (int axis : axes) index = index * mesh.size(axis) + coordinate[static_cast<size_t>(axis)];
    int64_t& size = sizes[static_cast<size_t>(index)];
    const int64_t mine = all[r][2 + dim];
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
      if (part[static_cast<size_t>(i)] != chunk(n, axis_size, i).size()) return false;
    }
  }
  return true;
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
  const auto all = gather_sizes(local, mesh);
  check_alike(all, mesh);
  std::vector<int64_t> shape;
  for (int dim = 0; dim < static_cast<int>(local.dim()); ++dim) {
    const auto axes = axes_on_dim(placements, dim);
    auto sizes = sizes_over(all, mesh, static_cast<size_t>(dim), axes);
    // From the innermost cut outwards: each level's sizes are the sums of the level inside it.
    for (size_t level = axes.size(); level-- > 0;) {
      const int64_t k = mesh.size(axes[level]);
      Placement& p = placements[static_cast<size_t>(axes[level])];
      if (!is_chunked(sizes, k)) p = RaggedShard(dim, sizes);
      std::vector<int64_t> outer(sizes.size() / static_cast<size_t>(k), 0);
      for (size_t i = 0; i < sizes.size(); ++i) outer[i / static_cast<size_t>(k)] += sizes[i];
      sizes = std::move(outer);
    }
    shape.push_back(sizes.front());
  }
  return Sharding(mesh, std::move(placements), std::move(shape),
                  {.dtype = static_cast<DType>(local.scalar_type())});
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
  return Sharding(mesh, std::move(placements), std::move(shape),
                  {.dtype = static_cast<DType>(local.scalar_type())});
}

}  // namespace tessera::dtensor
