#pragma once

#include <ATen/core/Tensor.h>

#include <string>
#include <vector>

#include "tessera/parallel/anchor.h"
#include "tessera/parallel/parallelize_module.h"

/// A plan made concrete for one module: everything that can be wrong with it is found here, before
/// any parameter changes.
namespace tessera::parallel {

/// A parameter and the placement that it gets on the axis.
struct PlacedParameter {
  std::string path;
  at::Tensor tensor;
  Placement placement;
  std::vector<Anchor> anchors;  ///< empty if no op is affected: a bias
};

/// Each parameter once, also where modules share it.
std::vector<PlacedParameter> resolve_plan(torch::nn::Module& module, const DeviceMesh& mesh,
                                          const std::string& axis, const ParallelPlan& plan);

}  // namespace tessera::parallel
