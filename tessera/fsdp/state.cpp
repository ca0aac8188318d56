#include "tessera/fsdp/state.h"

#include <c10/core/GradMode.h>
#include <torch/nn/module.h>

#include "tessera/base/errors.h"
#include "tessera/dtensor/dtensor.h"

namespace tessera {
namespace {

FullState tensors_of(const torch::nn::Module& module) {
  FullState out;
  for (const auto& item : module.named_parameters()) out.emplace(item.key(), item.value());
  for (const auto& item : module.named_buffers()) out.emplace(item.key(), item.value());
  std::erase_if(out, [](const auto& item) { return !item.second.defined(); });
  return out;
}

bool is_first_of(const DeviceMesh& mesh) { return mesh.my_rank() == mesh.ranks()[0]; }

/// My part of a whole tensor, placed as `as`; nothing is sent.
at::Tensor cut(const at::Tensor& whole, const Sharding& as) {
  const std::vector<Placement> replicated(static_cast<size_t>(as.mesh().ndim()));
  const at::Tensor everywhere = from_local(whole, as.mesh(), replicated);
  return redistribute(everywhere, as.with_dtype(static_cast<DType>(whole.scalar_type())));
}

void check_names(const FullState& own, const FullState& given) {
  std::string missing;
  std::string unknown;
  for (const auto& [name, tensor] : own) {
    const auto found = given.find(name);
    if (found == given.end()) {
      missing += " " + name;
      continue;
    }
    require(found->second.defined() && !is_dtensor(found->second), "load_full_state: ", name,
            " is not a plain tensor");
    require(found->second.sizes() == tensor.sizes(), "load_full_state: ", name, " is ",
            shape_text(found->second.sizes()), " in the state and ", shape_text(tensor.sizes()),
            " in the module");
  }
  for (const auto& [name, tensor] : given) {
    if (!own.contains(name)) unknown += " " + name;
  }
  require(missing.empty() && unknown.empty(), "load_full_state: the state",
          missing.empty() ? "" : " lacks" + missing,
          missing.empty() || unknown.empty() ? "" : " and",
          unknown.empty() ? "" : " has, unlike the module," + unknown);
}

}  // namespace

FullState full_state(const torch::nn::Module& module, const FullStateOptions& options) {
  const c10::AutoGradMode no_grad(false);
  FullState out;
  for (const auto& [name, tensor] : tensors_of(module)) {
    const at::Tensor value = tensor.detach();
    const bool keep = !options.rank0_only || !is_dtensor(value) || is_first_of(device_mesh(value));
    const at::Tensor whole = is_dtensor(value) ? full_tensor(value) : value;
    if (keep) out.emplace(name, whole.to(at::kCPU, /*non_blocking=*/false, /*copy=*/true));
  }
  return out;
}

void load_full_state(torch::nn::Module& module, const FullState& state) {
  const c10::AutoGradMode no_grad(false);
  FullState own = tensors_of(module);
  check_names(own, state);
  for (auto& [name, tensor] : own) {
    const at::Tensor whole = state.at(name).to(tensor.device(), tensor.scalar_type());
    tensor.detach().copy_(is_dtensor(tensor) ? cut(whole, sharding(tensor)) : whole);
  }
}

}  // namespace tessera
