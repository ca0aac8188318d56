#pragma once

#include <ATen/ATen.h>

#include <map>
#include <string>
#include <vector>

#include "tessera/collective/reduce.h"
#include "tessera/exec/collectives.h"
#include "tessera/sharding/local_shape.h"
#include "tessera/sharding/sharding.h"

/// split: what each rank holds of a tensor under a sharding. combine: the tensor from what they
/// hold. Written for clearness, by index; only the reduction is that of thread ranks, which has its
/// own tests.
namespace tessera::test {

inline std::vector<Coordinate> all_coordinates(const DeviceMesh& mesh) {
  std::vector<Coordinate> out;
  for (int rank : mesh.ranks()) out.push_back(*mesh.coordinate_of(rank));
  return out;
}

inline at::Tensor held_indexes(const Sharding& s, int dim, const Coordinate& at) {
  std::vector<at::Tensor> parts = {at::empty({0}, at::kLong)};
  for (const auto& i : held_intervals(s, dim, at))
    parts.push_back(at::arange(i.begin, i.end, at::kLong));
  return at::cat(parts);
}

/// The coordinates on partial axes only: ranks that differ elsewhere share an addend.
inline Coordinate partial_coordinate(const Sharding& s, const Coordinate& at) {
  Coordinate out;
  for (int axis = 0; axis < s.mesh().ndim(); ++axis) {
    if (s.placement(axis).is_partial()) out.push_back(at[static_cast<size_t>(axis)]);
  }
  return out;
}

inline at::Tensor random_like(const at::Tensor& x) {
  if (at::isIntegralType(x.scalar_type(), true))
    return at::randint(0, x.scalar_type() == at::kBool ? 2 : 7, x.sizes(), x.options());
  // Small integers, of which a few can be added in 16 bits without a rounding.
  if (at::isReducedFloatingType(x.scalar_type())) return at::randint(-1, 2, x.sizes(), x.options());
  return at::randn_like(x);
}

/// What the values of all partial coordinates are joined by, and then multiplied with; averages are
/// weighed sums.
struct Reduction {
  std::optional<ReduceOp> op;  // none without a partial axis
  double weight = 1;
};

inline Reduction reduction_of(const Sharding& s) {
  Reduction out;
  for (int axis = 0; axis < s.mesh().ndim(); ++axis) {
    const auto& p = s.placement(axis);
    if (!p.is_partial()) continue;
    out.op = p.reduce_op() == ReduceOp::avg ? ReduceOp::sum : p.reduce_op();
    if (p.reduce_op() == ReduceOp::avg) out.weight /= s.mesh().size(axis);
  }
  return out;
}

/// One addend for each partial coordinate, which together make x.
inline std::map<Coordinate, at::Tensor> addends(const Sharding& s, const at::Tensor& x) {
  const auto [op, weight] = reduction_of(s);
  std::map<Coordinate, at::Tensor> out;
  for (const auto& at : all_coordinates(s.mesh())) out.try_emplace(partial_coordinate(s, at));
  if (!op) {
    out.begin()->second = x;
    return out;
  }
  const at::Tensor winner = at::randint(0, static_cast<int64_t>(out.size()), x.sizes(), at::kLong);
  at::Tensor rest = x.clone();
  int64_t i = 0;
  const auto last = static_cast<int64_t>(out.size()) - 1;
  for (auto& [coordinate, value] : out) {
    const at::Tensor r = random_like(x);
    const at::Tensor mine = winner == i;
    switch (*op) {
      case ReduceOp::sum:
        value = i == last ? (weight == 1 ? rest : rest / weight) : r;
        rest = weight == 1 ? rest - value : rest - value * weight;
        break;
      case ReduceOp::product:
        value = i == last                                   ? rest
                : at::isIntegralType(x.scalar_type(), true) ? at::ones_like(x)
                                                            : r.abs() + 0.5;
        if (i != last && !at::isIntegralType(x.scalar_type(), true)) rest = rest / value;
        break;
      case ReduceOp::max:
        value = x.scalar_type() == at::kBool ? at::logical_and(x, at::logical_or(mine, r))
                                             : at::where(mine, x, x - r.abs());
        break;
      case ReduceOp::min:
        value = x.scalar_type() == at::kBool
                    ? at::logical_or(x, at::logical_and(at::logical_not(mine), r))
                    : at::where(mine, x, x + r.abs());
        break;
      case ReduceOp::band:
        value = i == last ? x : at::bitwise_or(x, r);
        break;
      case ReduceOp::bor:
        value = i == last ? x : at::bitwise_and(x, r);
        break;
      case ReduceOp::bxor:
        value = i == last ? rest : r;
        rest = at::bitwise_xor(rest, value);
        break;
      case ReduceOp::avg:
        break;
    }
    ++i;
  }
  return out;
}

inline at::Tensor slice_of(const at::Tensor& x, const Sharding& s, const Coordinate& at) {
  at::Tensor out = x;
  for (int dim = 0; dim < s.ndim(); ++dim) {
    if (!s.axes_of_dim(dim).empty()) out = out.index_select(dim, held_indexes(s, dim, at));
  }
  return out.clone();
}

/// By rank, in the mesh's order.
inline std::vector<at::Tensor> split(const at::Tensor& x, const Sharding& s) {
  const auto values = addends(s, x);
  std::vector<at::Tensor> out;
  for (const auto& at : all_coordinates(s.mesh())) {
    out.push_back(slice_of(values.at(partial_coordinate(s, at)), s, at));
  }
  return out;
}

inline bool alike(const at::Tensor& a, const at::Tensor& b) {
  if (a.sizes() != b.sizes() || a.scalar_type() != b.scalar_type()) return false;
  if (at::isIntegralType(a.scalar_type(), true)) return at::equal(a, b);
  const bool coarse = a.scalar_type() != at::kDouble && a.scalar_type() != at::kComplexDouble;
  const double tolerance = a.scalar_type() == at::kBFloat16 ? 3e-2 : coarse ? 1e-4 : 1e-8;
  return at::allclose(a, b, tolerance, tolerance, true);
}

/// The distance of 1 from the next number.
inline double rounding_of(at::ScalarType type) {
  switch (type) {
    case at::kDouble:
      return 0x1p-52;
    case at::kFloat:
      return 0x1p-23;
    case at::kHalf:
      return 0x1p-10;
    case at::kBFloat16:
      return 0x1p-7;
    default:
      return 0;
  }
}

/// Of finite elements, the largest absolute value.
inline double largest_of(const std::vector<at::Tensor>& parts) {
  double out = 0;
  for (const auto& part : parts) {
    const at::Tensor size = part.to(at::kDouble).abs();
    const at::Tensor finite = size.masked_select(size.isfinite());
    if (finite.numel() > 0) out = std::max(out, finite.max().item<double>());
  }
  return out;
}

/// The tensor; an error text where the parts do not fit the sharding or each other.
inline at::Tensor combine(const std::vector<at::Tensor>& parts, const Sharding& s,
                          std::string& error) {
  const auto coordinates = all_coordinates(s.mesh());
  std::map<Coordinate, at::Tensor> values, seen;
  for (size_t r = 0; r < parts.size(); ++r) {
    const auto& at = coordinates[r];
    const auto want = local_shape(s, at);
    if (parts[r].sizes() != at::IntArrayRef(want)) {
      std::ostringstream message;
      message << "rank " << r << " gives " << parts[r].sizes() << ", its sharding says "
              << at::IntArrayRef(want);
      error = message.str();
      return {};
    }
    const auto key = partial_coordinate(s, at);
    auto [value, fresh] = values.try_emplace(key);
    if (fresh) {
      value->second = at::zeros(s.shape(), parts[r].options());
      seen[key] = at::zeros(s.shape(), at::kBool);
    }
    at::Tensor where = at::ones(s.shape(), at::kBool);
    for (int dim = 0; dim < s.ndim(); ++dim) {
      at::Tensor mine = at::zeros({s.shape()[static_cast<size_t>(dim)]}, at::kBool);
      mine.index_fill_(0, held_indexes(s, dim, at), 1);
      std::vector<int64_t> shape(static_cast<size_t>(s.ndim()), 1);
      shape[static_cast<size_t>(dim)] = -1;
      where = at::logical_and(where, mine.view(shape));
    }
    at::Tensor here = at::zeros(s.shape(), parts[r].options());
    here.masked_scatter_(where, parts[r].contiguous());
    const at::Tensor twice = at::logical_and(where, seen[key]);
    if (twice.any().item<bool>() &&
        !alike(here.masked_select(twice), value->second.masked_select(twice))) {
      error = "rank " + std::to_string(r) + " differs from another that should hold the same";
      return {};
    }
    value->second = at::where(where, here, value->second);
    seen[key] = at::logical_or(seen[key], where);
  }
  std::vector<at::Tensor> addends;
  for (const auto& [key, value] : values) {
    if (!seen[key].all().item<bool>()) {
      error = "some elements are on no rank";
      return {};
    }
    addends.push_back(value);
  }
  const auto [op, weight] = reduction_of(s);
  if (!op) return addends.front();
  const auto out = comm::reduce_tensors({exec::c10d_op(*op).op_, {}}, addends);
  return weight == 1 ? out : out * weight;
}

}  // namespace tessera::test
