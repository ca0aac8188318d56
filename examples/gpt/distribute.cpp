#include "distribute.h"

#include <tessera/tessera.h>
#include <torch/utils.h>

#include <cmath>

namespace gpt {

using namespace tessera;

namespace {

/// Nothing is sent to distribute a parameter: its values are drawn afterwards.
const DistributeOptions kOwnData = {.source = std::nullopt};

/// Two matrices in a row: the first is cut by outputs, the second by inputs, so that each rank of
/// tp takes its heads or hidden units from one to the other and nothing is sent between them.
void cut_over_tp(const std::string& name, torch::nn::Module& module, const DeviceMesh& tp) {
  auto* linear = module.as<torch::nn::LinearImpl>();
  if (linear == nullptr) return;
  const bool by_inputs = name.ends_with("out") || name.ends_with("down");
  distribute_(linear->weight, tp, {Shard(by_inputs ? 1 : 0)}, kOwnData);
  if (linear->bias.defined() && !by_inputs) {
    distribute_(linear->bias, tp, {Shard(0)}, kOwnData);
  }
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
  distribute_module(*model, mesh["tp"], cut_over_tp, kOwnData);
  fill(model, settings);
  for (const auto& block : *model->blocks) fully_shard(*block, mesh["dp"], {.data = kOwnData});
  fully_shard(*model, mesh["dp"], {.data = kOwnData});  // what is in no block
}

at::Tensor spread(const at::Tensor& x) {
  const auto here = placements(x);
  return redistribute(x, {here.begin(), here.end()}, {.backward_dtype = x.scalar_type()});
}

at::Tensor summed(const at::Tensor& x) {
  const auto here = placements(x);
  std::vector<Placement> there(here.begin(), here.end());
  for (auto& placement : there) {
    if (placement.is_partial()) placement = Replicate();
  }
  return redistribute(x, there);
}

}  // namespace gpt
