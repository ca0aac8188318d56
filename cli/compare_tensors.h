#pragma once

#include <ATen/core/Tensor.h>

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "cli/tensor_file.h"
#include "tessera/base/dtype.h"

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
/// `computed`: by name, the type that decides on the tolerance of a floating-point output if it is
/// shorter than the output's own (computed_types.h).
std::vector<Difference> compare_tensors(const NamedTensors& found, const NamedTensors& expected,
                                        const std::map<std::string, DType>& computed,
                                        std::optional<double> tolerance);

}  // namespace tessera::cli
