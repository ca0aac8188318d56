#pragma once

#include <ATen/core/Tensor.h>

#include <optional>
#include <string>
#include <vector>

#include "cli/tensor_file.h"

namespace tessera::cli {

/// How far one output is from what it should be.
struct Difference {
  std::string name;
  std::string dtype;
  std::string shape;
  double largest = 0;     ///< of |found - expected|
  double relative = 0;    ///< the same over the largest |expected|
  double allowed = 0;     ///< for `relative`
  std::string problem{};  ///< "" unless it is missing, unexpected, or of another type or shape

  bool ok() const { return problem.empty() && relative <= allowed; }
};

/// What sharding may change, relative to the largest value: sums of other order. Exact for integers
/// and booleans; 1e-10 for f64, 1e-4 for f32, 2e-2 for shorter floats.
double default_tolerance(at::ScalarType dtype);

/// One entry for each output of either. NaN equals NaN, and an infinity its like.
std::vector<Difference> compare_tensors(const NamedTensors& found, const NamedTensors& expected,
                                        std::optional<double> tolerance);

}  // namespace tessera::cli
