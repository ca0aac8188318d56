#include "distribute.h"

#include <tessera/tessera.h>
#include <torch/utils.h>

#include <cmath>

namespace gpt {

using namespace tessera;

namespace {

/// Nothing is sent to distribute a parameter: its values are drawn afterwards.
const DistributeOptions kOwnData = {.source = std::nullopt};

/// Two matrices in a row: the first is sharded by outputs, the second by inputs, so that each rank
/// of tp takes its heads or hidden units from one to the other and nothing is sent between them.
ParallelPlan plan_over_tp(const Settings& settings) {
  const auto by_heads = ColwiseParallel({.heads = settings.heads});
  return {
      {"blocks.*.attention.query", by_heads},
      {"blocks.*.attention.key", by_heads},
      {"blocks.*.attention.value", by_heads},
      {"blocks.*.attention.out", RowwiseParallel()},
      {"blocks.*.up", ColwiseParallel()},
      {"blocks.*.down", RowwiseParallel()},
      {"head", ColwiseParallel()},
  };
}

/// Random numbers on sharded tensors go by an element's place in the global tensor.
void fill(Gpt& model, const Settings& settings) {
  const torch::NoGradGuard no_grad;
  tessera::manual_seed(static_cast<uint64_t>(settings.seed));
  const double scale = 1 / std::sqrt(static_cast<double>(settings.width));
  const double end_of_branch = scale / std::sqrt(2.0 * static_cast<double>(settings.layers));
  for (const auto& entry : model->named_parameters()) {
    const std::string& name = entry.key();
    const bool closes_branch = name.ends_with("out.weight") || name.ends_with("down.weight");
    if (name.ends_with("bias")) {
      entry.value().zero_();
    } else if (name.ends_with("norm.weight")) {
      entry.value().fill_(1);
    } else {
      entry.value().normal_(0, closes_branch ? end_of_branch : scale);
    }
  }
}

}  // namespace

void distribute(Gpt& model, const Settings& settings, const DeviceMesh& mesh) {
  parallelize_module(*model, mesh["tp"], plan_over_tp(settings),
                     {.data = kOwnData, .reduce_gradients = false});  // fully_shard reduces them
  fill(model, settings);
  for (const auto& block : *model->blocks) fully_shard(*block, mesh["dp"], {.data = kOwnData});
  fully_shard(*model, mesh["dp"], {.data = kOwnData});  // what is in no block
}

}  // namespace gpt
