#include "cli/compare_tensors.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <limits>

#include "tessera/base/text.h"

namespace tessera::cli {
namespace {

const at::Tensor* find(const NamedTensors& tensors, const std::string& name) {
  for (const auto& [of, tensor] : tensors) {
    if (of == name) return &tensor;
  }
  return nullptr;
}

void measure(const at::Tensor& found, const at::Tensor& expected, Difference& out) {
  if (expected.numel() == 0) return;
  const auto wide = expected.is_complex() ? at::kComplexDouble : at::kDouble;
  const at::Tensor a = found.to(wide);
  const at::Tensor b = expected.to(wide);
  const at::Tensor same = a.eq(b).logical_or(a.isnan().logical_and(b.isnan()));
  const at::Tensor zero = at::zeros({}, at::kDouble);
  at::Tensor distance = at::where(same, zero, (a - b).abs());
  distance =
      at::where(distance.isnan(),
                at::full({}, std::numeric_limits<double>::infinity(), at::kDouble), distance);
  out.largest = distance.max().item<double>();
  const at::Tensor size = b.abs();
  const double scale = at::where(size.isfinite(), size, zero).max().item<double>();
  out.relative = scale > 0 ? out.largest / scale : out.largest;
}

}  // namespace

double default_tolerance(at::ScalarType dtype) {
  switch (dtype) {
    case at::kDouble:
    case at::kComplexDouble:
      return 1e-10;
    case at::kFloat:
    case at::kComplexFloat:
      return 1e-4;
    default:
      return at::isFloatingType(dtype) ? 2e-2 : 0;
  }
}

std::vector<Difference> compare_tensors(const NamedTensors& found, const NamedTensors& expected,
                                        const std::map<std::string, DType>& computed,
                                        std::optional<double> tolerance) {
  const auto tolerance_of = [&](const std::string& name, at::ScalarType own) {
    const auto type = computed.find(name);
    const double by_own = default_tolerance(own);
    if (by_own == 0 || type == computed.end()) return by_own;
    return std::max(by_own, default_tolerance(static_cast<at::ScalarType>(type->second)));
  };
  std::vector<Difference> out;
  for (const auto& [name, tensor] : expected) {
    Difference one{.name = name, .dtype = dtype_text(tensor), .shape = sizes_text(tensor)};
    one.allowed = tolerance.value_or(tolerance_of(name, tensor.scalar_type()));
    const at::Tensor* other = find(found, name);
    if (other == nullptr) {
      one.problem = "is missing";
    } else if (other->scalar_type() != tensor.scalar_type() || other->sizes() != tensor.sizes()) {
      one.problem = join_text("is ", dtype_text(*other), " ", sizes_text(*other));
    } else {
      measure(*other, tensor, one);
    }
    out.push_back(std::move(one));
  }
  for (const auto& [name, tensor] : found) {
    if (find(expected, name) != nullptr) continue;
    out.push_back({.name = name,
                   .dtype = dtype_text(tensor),
                   .shape = sizes_text(tensor),
                   .problem = "is not an output of the whole program"});
  }
  return out;
}

}  // namespace tessera::cli
