#pragma once

#include <ATen/core/Tensor.h>

#include <optional>
#include <string>
#include <vector>

#include "cli/tensor_file.h"

namespace tessera::cli {

/// The deviation of one output from the expected one.
struct Difference {
  std::string name;
  std::string dtype;
  std::string shape;
  double largest = 0;     ///< of |found - expected|
  double relative = 0;    ///< `largest` divided by the largest |expected|
  double allowed = 0;     ///< limit for `relative`
  std::string problem{};  ///< "" unless it is missing, unexpected, or of another dtype or shape

  bool ok() const { return problem.empty() && relative <= allowed; }
};

/// The tolerance for what sharding may change (the order of sums), relative to the largest value.
/// Exact for integers and booleans; 1e-10 for f64, 1e-4 for f32, 2e-2 for shorter floats.
double default_tolerance(at::ScalarType dtype);

/// One entry per output of either. NaN equals NaN, and infinities of the same sign are equal.
std::vector<Difference> compare_tensors(const NamedTensors& found, const NamedTensors& expected,
                                        std::optional<double> tolerance);

}  // namespace tessera::cli
