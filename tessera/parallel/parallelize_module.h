#pragma once

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "tessera/base/api.h"
#include "tessera/dtensor/dtensor.h"
#include "tessera/parallel/style.h"

namespace torch::nn {
class Module;
}

/// Tensor parallelism by a plan: which module is split how, over one mesh axis.
///
///   parallelize_module(*model, mesh["tp"], {
///       {"embedding",              RowwiseParallel()},              // the vocabulary
///       {"layers.*.attention.wq",  ColwiseParallel({.heads = 8})},
///       {"layers.*.attention.wk",  ColwiseParallel({.heads = 2})},
///       {"layers.*.attention.wv",  ColwiseParallel({.heads = 2})},
///       {"layers.*.attention.wo",  RowwiseParallel()},
///       {"layers.*.mlp.up",        ColwiseParallel()},
///       {"layers.*.mlp.down",      RowwiseParallel()},
///   });
///
/// The module's class, its forward and its caller stay as they are: parameters become sharded in
/// place, and those that the plan does not name are replicated. Inputs are sharded tensors or, for
/// ops with a styled weight, plain ones (ColwiseOptions::input_layout).
namespace tessera {

/// Paths of submodules and their styles. `*`, `?` and `[qkv]` match within a name between dots,
/// `**` also dots; "" is the module itself. A path in full takes precedence over a pattern.
using ParallelPlan = std::vector<std::pair<std::string, parallel::Style>>;

struct TESSERA_API ParallelizeOptions {
  /// The axis to split over, if the mesh has several: parameters are replicated on the others.
  std::string axis = {};
  DistributeOptions data = {};
  /// Calls tessera::reduce_gradients, so that gradients have the placements of their parameters.
  bool reduce_gradients = true;
};

/// Everything is checked before anything changes: throws InvalidArgument for a path that matches no
/// module (with the names nearest to it), a module without a weight that the style can split, and
/// sizes that cannot be split as asked. Must be called on every rank of the mesh.
TESSERA_API void parallelize_module(torch::nn::Module& module, const DeviceMesh& mesh,
                                    const ParallelPlan& plan,
                                    const ParallelizeOptions& options = {});

}  // namespace tessera
