#include "tessera/fsdp/state.h"

#include <ATen/ops/empty.h>
#include <c10/core/GradMode.h>
#include <torch/nn/module.h>

#include "tessera/base/errors.h"
#include "tessera/dtensor/dtensor.h"
#include "tessera/dtensor/lazy.h"
#include "tessera/dtensor/spread.h"
#include "tessera/fsdp/agree.h"

namespace tessera {
namespace {

NamedTensors tensors_of(const torch::nn::Module& module) {
  NamedTensors out;
  for (const auto& item : module.named_parameters()) out.emplace(item.key(), item.value());
  for (const auto& item : module.named_buffers()) out.emplace(item.key(), item.value());
  std::erase_if(out, [](const auto& item) { return !item.second.defined(); });
  return out;
}

bool is_first_of(const DeviceMesh& mesh) { return mesh.my_rank() == mesh.ranks()[0]; }

/// The mesh of most ranks among the tensors': its first rank speaks for the module. Undefined if
/// nothing is sharded.
DeviceMesh widest_mesh(const NamedTensors& tensors) {
  DeviceMesh out;
  for (const auto& [name, tensor] : tensors) {
    if (!is_dtensor(tensor)) continue;
    const DeviceMesh& mesh = device_mesh(tensor);
    if (!out.defined() || mesh.size() > out.size()) out = mesh;
  }
  return out;
}

Sharding replicated_on(const DeviceMesh& mesh, const at::Tensor& like) {
  return Sharding(mesh, std::vector<Placement>(static_cast<size_t>(mesh.ndim())),
                  like.sizes().vec(), {.dtype = static_cast<DType>(like.scalar_type())});
}

/// My part of a whole tensor, placed as `as`; nothing is sent.
at::Tensor cut(const at::Tensor& whole, const Sharding& as) {
  const at::Tensor everywhere = dtensor::wrap(whole.contiguous(), replicated_on(as.mesh(), whole));
  return redistribute(everywhere, as.with_dtype(static_cast<DType>(whole.scalar_type())));
}

/// "" if `given` has exactly the module's names and shapes, else what is wrong.
std::string difference(const NamedTensors& own, const NamedTensors& given) {
  std::string missing;
  std::string unknown;
  for (const auto& [name, tensor] : own) {
    if (tensor.is_meta()) return join_text(name, " is on meta in the module; to_empty it before");
    const auto found = given.find(name);
    if (found == given.end()) {
      missing += " " + name;
      continue;
    }
    if (!found->second.defined()) return join_text(name, " is undefined");
    if (found->second.sizes() != tensor.sizes()) {
      return join_text(name, " is ", shape_text(found->second.sizes()), " in the state and ",
                       shape_text(tensor.sizes()), " in the module");
    }
  }
  for (const auto& [name, tensor] : given) {
    if (!own.contains(name)) unknown += " " + name;
  }
  if (missing.empty() && unknown.empty()) return "";
  return join_text("the state", missing.empty() ? "" : " lacks" + missing,
                   missing.empty() || unknown.empty() ? "" : " and",
                   unknown.empty() ? "" : " has, unlike the module," + unknown);
}

std::string difference_of_full(const NamedTensors& own, const NamedTensors& given) {
  for (const auto& [name, tensor] : given) {
    if (tensor.defined() && is_dtensor(tensor)) return join_text(name, " is not a plain tensor");
  }
  return difference(own, given);
}

/// This rank's part of a tensor whose value the first rank of `wide` has. Tensors of a smaller mesh
/// are whole on every rank for a moment: the first rank cannot see all such meshes.
at::Tensor part_from_first(const at::Tensor& tensor, const DeviceMesh& wide,
                           const at::Tensor& value) {
  if (is_dtensor(tensor) && device_mesh(tensor) == wide) {
    return dtensor::scatter_from(value, /*source=*/0, sharding(tensor));
  }
  const at::Tensor whole = dtensor::scatter_from(value, /*source=*/0, replicated_on(wide, tensor));
  return is_dtensor(tensor) ? to_local(cut(whole, sharding(tensor))) : whole;
}

/// Where the values rest: this rank's part, or the whole of a plain tensor.
at::Tensor at_rest(const at::Tensor& tensor) {
  return is_dtensor(tensor) ? to_local(tensor.detach()) : tensor.detach();
}

}  // namespace

FullState full_state(const torch::nn::Module& module, const FullStateOptions& options) {
  const c10::AutoGradMode no_grad(false);
  const NamedTensors own = tensors_of(module);
  const DeviceMesh wide = widest_mesh(own);
  const bool keep = !options.rank0_only || !wide.defined() || is_first_of(wide);
  FullState out;
  for (const auto& [name, tensor] : own) {
    require(!tensor.is_meta(), "full_state: ", name, " is on meta and has no values");
    const at::Tensor value = tensor.detach();
    const at::Tensor whole = is_dtensor(value) ? full_tensor(value) : value;
    if (keep) out.emplace(name, whole.to(at::kCPU, /*non_blocking=*/false, /*copy=*/true));
  }
  return out;
}

void load_full_state(torch::nn::Module& module, const FullState& state,
                     const FullStateOptions& options) {
  const c10::AutoGradMode no_grad(false);
  const NamedTensors own = tensors_of(module);
  const DeviceMesh wide = widest_mesh(own);
  const bool sent = options.rank0_only && wide.defined();
  const bool has_state = !sent || is_first_of(wide);
  std::string wrong = has_state ? difference_of_full(own, state) : "";
  if (sent) wrong = fsdp::said_by_first(wide, wrong);
  require(wrong.empty(), "load_full_state: ", wrong);
  for (const auto& [name, tensor] : own) {
    const at::Tensor rest = at_rest(tensor);
    const at::Tensor value = has_state ? state.at(name).to(rest.device(), rest.scalar_type())
                                       : at::empty({0}, rest.options());
    if (sent) {
      rest.copy_(part_from_first(tensor, wide, value));
    } else {
      rest.copy_(is_dtensor(tensor) ? to_local(cut(value, sharding(tensor))) : value);
    }
  }
}

NamedTensors sharded_state(const torch::nn::Module& module) {
  const c10::AutoGradMode no_grad(false);
  NamedTensors out;
  for (const auto& [name, tensor] : tensors_of(module)) {
    dtensor::LazyLocal* lazy = dtensor::lazy_local(tensor);
    out.emplace(name, lazy != nullptr ? lazy->shards() : tensor.detach());
  }
  return out;
}

void load_sharded_state(torch::nn::Module& module, const NamedTensors& state) {
  const c10::AutoGradMode no_grad(false);
  const NamedTensors own = tensors_of(module);
  std::string wrong = difference(own, state);
  for (const auto& [name, tensor] : own) {
    if (!wrong.empty()) break;
    if (is_dtensor(tensor) != is_dtensor(state.at(name))) {
      wrong = join_text(name,
                        is_dtensor(tensor) ? " is plain in the state and sharded"
                                           : " is sharded in the state and plain",
                        " in the module; distribute_tensor or full_tensor changes it");
    }
  }
  require(wrong.empty(), "load_sharded_state: ", wrong);
  for (const auto& [name, tensor] : own) {
    const at::Tensor rest = at_rest(tensor);
    const at::Tensor& given = state.at(name);
    if (!is_dtensor(tensor)) {
      rest.copy_(given);
      continue;
    }
    dtensor::LazyLocal* lazy = dtensor::lazy_local(given);
    const at::Tensor value = (lazy != nullptr ? lazy->shards() : given).detach();
    rest.copy_(to_local(redistribute(value, sharding(tensor).with_dtype(sharding(value).dtype()))));
  }
}

}  // namespace tessera
