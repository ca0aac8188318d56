#include "tessera/module/state.h"

#include <ATen/ops/empty.h>
#include <c10/core/GradMode.h>
#include <torch/nn/module.h>

#include "tessera/base/errors.h"
#include "tessera/dtensor/buckets.h"
#include "tessera/dtensor/dtensor.h"
#include "tessera/dtensor/tensor/lazy.h"
#include "tessera/module/broadcast_text.h"

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

/// The mesh with the most ranks among the tensors'; its first rank represents the module. Undefined
/// if nothing is sharded.
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

/// This rank's part of a full tensor with sharding `as`; no communication.
at::Tensor sharded_as(const at::Tensor& whole, const Sharding& as) {
  const at::Tensor everywhere = dtensor::wrap(whole.contiguous(), replicated_on(as.mesh(), whole));
  return redistribute(everywhere, as.with_dtype(static_cast<DType>(whole.scalar_type())));
}

/// "" if `given` has exactly the module's names and shapes, else a description of the difference.
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

/// Loads tensors whose values the first rank of `wide` has, some at a time. Tensors on a smaller
/// mesh are temporarily whole on every rank: the first rank does not know all such meshes.
class ScatteredState {
 public:
  explicit ScatteredState(const DeviceMesh& wide) : wide_(wide) {}

  void add(const at::Tensor& tensor, const at::Tensor& rest, const at::Tensor& value) {
    const bool is_wide = is_dtensor(tensor) && device_mesh(tensor) == wide_;
    const Sharding sent = is_wide ? sharding(tensor) : replicated_on(wide_, tensor);
    tensors_.push_back(tensor);
    rests_.push_back(rest);
    values_.push_back(value);
    sent_.push_back(sent.with_dtype(static_cast<DType>(rest.scalar_type())));
    bytes_ += sent.numel() * static_cast<int64_t>(rest.element_size());
    if (bytes_ >= dtensor::kBucketBytes) flush();
  }

  void flush() {
    const auto parts = dtensor::scatter_all_from(values_, /*source=*/0, sent_);
    for (size_t i = 0; i < parts.size(); ++i) {
      const bool whole = is_dtensor(tensors_[i]) && !(device_mesh(tensors_[i]) == wide_);
      rests_[i].copy_(whole ? to_local(sharded_as(parts[i], sharding(tensors_[i]))) : parts[i]);
    }
    *this = ScatteredState(wide_);
  }

 private:
  DeviceMesh wide_;
  std::vector<at::Tensor> tensors_, rests_, values_;
  std::vector<Sharding> sent_;  // the sharding with which each is sent
  int64_t bytes_ = 0;
};

/// The stored values: this rank's part, or the whole of a plain tensor.
at::Tensor at_rest(const at::Tensor& tensor) {
  return is_dtensor(tensor) ? to_local(tensor.detach()) : tensor.detach();
}

}  // namespace

FullStateDict full_state_dict(const torch::nn::Module& module,
                              const FullStateDictOptions& options) {
  const c10::AutoGradMode no_grad(false);
  const NamedTensors own = tensors_of(module);
  const DeviceMesh wide = widest_mesh(own);
  const bool keep = !options.rank0_only || !wide.defined() || is_first_of(wide);
  FullStateDict out;
  std::vector<at::Tensor> sharded;
  std::vector<at::Tensor*> places;  // in the state; map nodes have stable addresses
  for (const auto& [name, tensor] : own) {
    require(!tensor.is_meta(), "full_state_dict: ", name, " is on meta and has no values");
    const at::Tensor value = tensor.detach();
    at::Tensor* place = keep ? &out[name] : nullptr;
    if (is_dtensor(value)) {
      sharded.push_back(value);
      places.push_back(place);
    } else if (keep) {
      *place = value.to(at::kCPU, /*non_blocking=*/false, /*copy=*/true);
    }
  }
  dtensor::TakeFull take;
  if (keep) {
    take = [&](size_t i, const at::Tensor& full) {
      const bool shares = full.is_cpu() && full.is_alias_of(to_local(sharded[i]));
      *places[i] = shares ? full.clone() : full.to(at::kCPU);
    };
  }
  dtensor::gather_full_tensors(sharded, take);
  return out;
}

void load_full_state_dict(torch::nn::Module& module, const FullStateDict& state,
                          const FullStateDictOptions& options) {
  const c10::AutoGradMode no_grad(false);
  const NamedTensors own = tensors_of(module);
  const DeviceMesh wide = widest_mesh(own);
  const bool sent = options.rank0_only && wide.defined();
  const bool has_state = !sent || is_first_of(wide);
  std::string wrong = has_state ? difference_of_full(own, state) : "";
  if (sent) wrong = module::broadcast_text(wide, wrong);
  require(wrong.empty(), "load_full_state_dict: ", wrong);
  ScatteredState scattered(wide);
  for (const auto& [name, tensor] : own) {
    const at::Tensor rest = at_rest(tensor);
    const at::Tensor value = has_state ? state.at(name).to(rest.device(), rest.scalar_type())
                                       : at::empty({0}, rest.options());
    if (sent) {
      scattered.add(tensor, rest, value);
    } else {
      rest.copy_(is_dtensor(tensor) ? to_local(sharded_as(value, sharding(tensor))) : value);
    }
  }
  if (sent) scattered.flush();
}

NamedTensors sharded_state_dict(const torch::nn::Module& module) {
  const c10::AutoGradMode no_grad(false);
  NamedTensors out;
  for (const auto& [name, tensor] : tensors_of(module)) {
    dtensor::LazyLocal* lazy = dtensor::lazy_local(tensor);
    const at::Tensor value = (lazy != nullptr ? lazy->shards() : tensor).detach();
    if (lazy != nullptr && !value.is_inference() && !tensor.is_inference()) {
      // As of detach() of the parameter: a backward sees what was written since its forward.
      value.unsafeGetTensorImpl()->set_version_counter(
          tensor.unsafeGetTensorImpl()->version_counter());
    }
    out.emplace(name, value);
  }
  return out;
}

void load_sharded_state_dict(torch::nn::Module& module, const NamedTensors& state) {
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
  require(wrong.empty(), "load_sharded_state_dict: ", wrong);
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
