#include "tessera/sharding/sharding.h"

#include <algorithm>
#include <numeric>

#include "tessera/base/errors.h"
#include "tessera/base/intern.h"
#include "tessera/base/shape.h"
#include "tessera/sharding/dim_intervals.h"
#include "tessera/sharding/sharding_node.h"

namespace tessera {
namespace {

InternTable<Sharding::Node>& sharding_table() {
  static auto* table = new InternTable<Sharding::Node>();  // never destroyed, see mesh_table()
  return *table;
}

/// What was requested, for error messages; the node need not be complete.
struct Asked {
  const Sharding::Node& node;
  std::string to_text() const {
    return join_text(node.mesh, " : ", placements_text(node.placements), " : ",
                     shape_text(node.shape));
  }
};

/// Every number of elements or bytes that follows from the shape must fit 64 bits.
void check_size(const Sharding::Node& node) {
  const auto shape = [&] { return shape_text(node.shape); };
  int64_t bytes = dtype_bytes(node.dtype);  // throws for types that cannot be sharded
  for (int64_t size : node.shape) {
    require(size >= 0, "a tensor of shape ", shape, ": a size is negative");
    require(!__builtin_mul_overflow(bytes, std::max<int64_t>(size, 1), &bytes),
            "a tensor of shape ", shape, " has more bytes than fit 64 bits");
  }
}

void normalise_dims(Sharding::Node& node) {
  const auto ndim = static_cast<int>(node.shape.size());
  for (auto& p : node.placements) {
    if (!p.is_sharded()) continue;
    const int dim = p.dim() < 0 ? p.dim() + ndim : p.dim();
    require(dim >= 0 && dim < ndim, p, " needs dim ", p.dim(), " of a tensor with ", ndim,
            " dims, in ", Asked{node});
    p = p.on_dim(dim);
  }
}

std::vector<int> full_order(std::vector<int> order, const Sharding::Node& node) {
  const int axes = node.mesh.ndim();
  std::vector<bool> listed(static_cast<size_t>(axes), false);
  for (int axis : order) {
    require(
        axis >= 0 && axis < axes && !listed[static_cast<size_t>(axis)], "order {",
        [&] { return list_text(order); }, "} does not list axes of ", node.mesh, " once each");
    listed[static_cast<size_t>(axis)] = true;
  }
  for (int axis = 0; axis < axes; ++axis) {
    if (!listed[static_cast<size_t>(axis)]) order.push_back(axis);
  }
  return order;
}

void place_axes(Sharding::Node& node, const std::vector<int>& order) {
  node.axes_of_dim.resize(node.shape.size());
  for (int axis : order) {
    const Placement& p = node.placements[static_cast<size_t>(axis)];
    if (p.is_sharded()) node.axes_of_dim[static_cast<size_t>(p.dim())].push_back(axis);
  }
}

/// Every ragged table must list a size for each rank of each outer piece and sum to that piece.
void check_ragged(const Sharding::Node& node) {
  for (size_t dim = 0; dim < node.shape.size(); ++dim) {
    const auto& axes = node.axes_of_dim[dim];
    int64_t outer_count = 1;
    for (size_t level = 0; level < axes.size(); ++level) {
      const Placement& p = node.placements[static_cast<size_t>(axes[level])];
      const int64_t k = node.mesh.size(axes[level]);
      if (p.kind() == Placement::Kind::ragged) {
        require(static_cast<int64_t>(p.sizes().size()) == outer_count * k, p, " lists ",
                p.sizes().size(), " sizes, axis ", node.mesh.axis_name(axes[level]), " needs ",
                outer_count * k, ", in ", Asked{node});
        for (int64_t outer = 0; outer < outer_count; ++outer) {
          Coordinate coordinate(static_cast<size_t>(node.mesh.ndim()), 0);
          int64_t rest = outer;
          for (size_t l = level; l-- > 0;) {
            const int size = node.mesh.size(axes[l]);
            coordinate[static_cast<size_t>(axes[l])] = static_cast<int>(rest % size);
            rest /= size;
          }
          const auto outer_axes = std::span<const int>(axes).first(level);
          const int64_t piece = total_size(dim_intervals(
              node.shape[dim], shards_of_dim(node.mesh, node.placements, outer_axes, coordinate)));
          const auto table =
              p.sizes().subspan(static_cast<size_t>(outer * k), static_cast<size_t>(k));
          const int64_t sum = std::accumulate(table.begin(), table.end(), static_cast<int64_t>(0));
          require(
              sum == piece, p, ": the sizes ", [&] { return list_text(table); }, " sum to ", sum,
              ", dim ", dim, " has ", piece, " to share, in ", Asked{node});
        }
      }
      outer_count *= k;
    }
  }
}

/// Different reductions do not commute, so a tensor that is Partial(sum) on one axis and
/// Partial(max) on another has no value; sum and avg differ only by a factor.
void check_partials(const Sharding::Node& node) {
  const auto family = [](const Placement& p) {
    return p.reduce_op() == ReduceOp::avg ? ReduceOp::sum : p.reduce_op();
  };
  const Placement* first = nullptr;
  for (const auto& p : node.placements) {
    if (!p.is_partial()) continue;
    if (first == nullptr) first = &p;
    require(family(p) == family(*first), "a tensor cannot be ", *first, " on one axis and ", p,
            " on another: the order of the reductions would matter, in ", Asked{node});
  }
}

void derive_local(Sharding::Node& node) {
  node.numel = numel_of(node.shape);
  const bool outside = node.mesh.my_rank() && !node.mesh.contains_me();
  node.local_shape = node.shape;
  node.local_offset.assign(node.shape.size(), 0);
  if (outside) {
    std::ranges::fill(node.local_shape, 0);
    node.local_offset = node.shape;
  } else {
    const Coordinate coordinate =
        node.mesh.my_coordinate().value_or(Coordinate(static_cast<size_t>(node.mesh.ndim()), 0));
    for (size_t dim = 0; dim < node.shape.size(); ++dim) {
      if (node.axes_of_dim[dim].empty()) continue;
      const auto held = dim_intervals(
          node.shape[dim],
          shards_of_dim(node.mesh, node.placements, node.axes_of_dim[dim], coordinate));
      node.local_shape[dim] = total_size(held);
      node.local_offset[dim] = held.empty() ? node.shape[dim] : held.front().begin;
    }
  }
  node.local_numel = outside ? 0 : numel_of(node.local_shape);
  node.local_stride = local_stride(node.local_shape, node.stride);
}

}  // namespace

size_t live_shardings() { return sharding_table().size(); }

Sharding::Sharding(DeviceMesh mesh, std::vector<Placement> placements, std::vector<int64_t> shape,
                   ShardingOptions options) {
  Node made;
  require(mesh.defined(), "a sharding needs a mesh");
  made.mesh = std::move(mesh);
  made.placements = std::move(placements);
  made.shape = std::move(shape);
  made.dtype = options.dtype;
  require(static_cast<int>(made.placements.size()) == made.mesh.ndim(), "mesh ", made.mesh, " has ",
          made.mesh.ndim(), " axes but ", made.placements.size(),
          " placements were given: ", [&] { return tessera::placements_text(made.placements); });
  check_size(made);
  normalise_dims(made);
  const bool strides_fit = options.stride.size() == made.shape.size() &&
                           std::ranges::none_of(options.stride, [](int64_t s) { return s < 0; });
  require(
      options.stride.empty() || strides_fit, "strides {", [&] { return list_text(options.stride); },
      "} for a tensor of shape ", [&] { return shape_text(made.shape); },
      ": give one for each dim, none negative");
  made.stride = options.stride.empty() ? contiguous_stride(made.shape) : std::move(options.stride);
  place_axes(made, full_order(std::move(options.order), made));
  check_ragged(made);
  check_partials(made);
  derive_local(made);
  node_ = sharding_table().intern(std::move(made));
}

const Sharding::Node& Sharding::node() const {
  require(node_ != nullptr, "an undefined sharding was used");
  return *node_;
}

const DeviceMesh& Sharding::mesh() const { return node().mesh; }
std::span<const Placement> Sharding::placements() const { return node().placements; }

const Placement& Sharding::placement(int axis) const {
  require(axis >= 0 && axis < node().mesh.ndim(), "axis ", axis, " of ", *this);
  return node().placements[static_cast<size_t>(axis)];
}

std::span<const int64_t> Sharding::shape() const { return node().shape; }
std::span<const int64_t> Sharding::stride() const { return node().stride; }
DType Sharding::dtype() const { return node().dtype; }
int Sharding::ndim() const { return static_cast<int>(node().shape.size()); }
int64_t Sharding::numel() const { return node().numel; }

std::span<const int> Sharding::axes_of_dim(int dim) const {
  require(dim >= 0 && dim < ndim(), "dim ", dim, " of ", *this);
  return node().axes_of_dim[static_cast<size_t>(dim)];
}

std::vector<int> Sharding::order() const { return node().order(); }
bool Sharding::has_default_order() const { return node().has_default_order(); }

bool Sharding::is_replicated() const {
  return std::ranges::all_of(placements(), [](const auto& p) { return p.is_replicate(); });
}

bool Sharding::has_partial() const {
  return std::ranges::any_of(placements(), [](const auto& p) { return p.is_partial(); });
}

bool Sharding::has_sharded() const {
  return std::ranges::any_of(placements(), [](const auto& p) { return p.is_sharded(); });
}

std::span<const int64_t> Sharding::local_shape() const { return node().local_shape; }
std::span<const int64_t> Sharding::local_stride() const { return node().local_stride; }
std::span<const int64_t> Sharding::local_offset() const { return node().local_offset; }
int64_t Sharding::local_numel() const { return node().local_numel; }

Sharding Sharding::with(int axis, Placement placement) const {
  require(axis >= 0 && axis < mesh().ndim(), "axis ", axis, " of ", *this);
  std::vector<Placement> placements(node().placements);
  placements[static_cast<size_t>(axis)] = std::move(placement);
  std::vector<int> nesting = order();
  std::erase(nesting, axis);
  for (int other = 0; other < mesh().ndim(); ++other) {
    if (other != axis && std::ranges::find(nesting, other) == nesting.end()) {
      nesting.push_back(other);
    }
  }
  nesting.push_back(axis);
  return with_placements(std::move(placements), std::move(nesting));
}

Sharding Sharding::with_placements(std::vector<Placement> placements,
                                   std::vector<int> order) const {
  return Sharding(mesh(), std::move(placements), node().shape,
                  {.dtype = dtype(), .stride = node().stride, .order = std::move(order)});
}

Sharding Sharding::with_dtype(DType dtype) const {
  if (dtype == this->dtype()) return *this;
  return Sharding(mesh(), node().placements, node().shape,
                  {.dtype = dtype, .stride = node().stride, .order = order()});
}

Sharding Sharding::with_mesh(DeviceMesh mesh) const {
  return Sharding(std::move(mesh), node().placements, node().shape,
                  {.dtype = dtype(), .stride = node().stride, .order = order()});
}

Sharding Sharding::with_shape(std::vector<int64_t> shape, std::vector<int64_t> stride) const {
  return Sharding(mesh(), node().placements, std::move(shape),
                  {.dtype = dtype(), .stride = std::move(stride), .order = order()});
}

Sharding Sharding::replicated() const {
  return with_placements(std::vector<Placement>(node().placements.size()));
}

}  // namespace tessera
