#include "tessera/fsdp/fully_shard.h"

#include <torch/nn/module.h>

#include <algorithm>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <set>

#include "tessera/base/errors.h"
#include "tessera/fsdp/control.h"
#include "tessera/fsdp/gather_scheduler.h"
#include "tessera/fsdp/param_group.h"

namespace tessera {
namespace {

using fsdp::DataMesh;
using fsdp::group_of_parameter;
using fsdp::ParamGroup;

struct Named {
  std::string name;
  at::Tensor tensor;
};

bool contains(const std::vector<at::Tensor>& list, const at::Tensor& tensor) {
  return std::ranges::any_of(list, [&](const at::Tensor& t) { return t.is_same(tensor); });
}

void check_device(const Named& item, const DeviceMesh& mesh, const FullyShardOptions& options) {
  const c10::Device device = item.tensor.device();
  if (device.is_meta() || (options.offload_policy && device.is_cpu())) return;
  require(c10::DeviceTypeName(device.type(), /*lower_case=*/true) == mesh.device(),
          "fully_shard: ", item.name, " is on ", device.str(), ", the mesh is of ", mesh.device(),
          " devices; move the module first");
}

void check(const Named& item, const DeviceMesh& mesh) {
  const at::Tensor& tensor = item.tensor;
  require(tensor.is_leaf() && !tensor.is_view(), "fully_shard: ", item.name, " is ",
          tensor.is_view() ? "a view" : "computed by autograd",
          "; parameters are tensors of their own");
  require(!tensor.grad().defined(), "fully_shard: ", item.name,
          " has a gradient, of this rank's batch alone; reset it before");
  if (tensor.unsafeGetTensorImpl()->key_set().has(c10::DispatchKey::Python)) {
    throw NotSupported(join_text(
        "fully_shard: ", item.name,
        " is of a Python class that says itself what ops do with it, and "
        "has no memory to shard; ignore it, or give a plain tensor (of PyTorch's DTensors, "
        "from_torch_dtensor makes one)"));
  }
  if (!tensor.is_contiguous()) {
    throw NotSupported(join_text("fully_shard: ", item.name, " is not contiguous, strides ",
                                 list_text(tensor.strides()), " of ", shape_text(tensor.sizes()),
                                 ". FSDP does not support non-contiguous parameters: "
                                 "make it so, or ignore it"));
  }
  if (!is_dtensor(tensor)) return;
  const Sharding& as = sharding(tensor);
  require(as.mesh().world() == mesh.world(), "fully_shard over ", mesh, ": ", item.name, " is ", as,
          ", of another world; make both meshes in one");
  require(!as.has_partial(), "fully_shard: ", item.name, " is ", as,
          "; redistribute it to Shard or Replicate first");
  for (const MeshAxis& axis : as.mesh().axes()) {
    require(!mesh.has_axis(axis.name), "fully_shard over ", mesh, ": ", item.name, " is ", as,
            ", already placed on axis ", axis.name,
            "; shard it over the tensor-parallel axes alone before");
  }
}

int dim_to_shard(const Named& item, const FullyShardOptions& options) {
  std::optional<int> wanted;
  if (options.shard_dim) wanted = options.shard_dim(item.name, item.tensor);
  const int ndim = static_cast<int>(item.tensor.dim());
  if (ndim == 0) return fsdp::kWhole;
  const int dim = wanted.value_or(0);
  require(dim >= -ndim && dim < ndim, "fully_shard: shard_dim gave ", dim, " for ", item.name,
          " of ", shape_text(item.tensor.sizes()));
  return dim < 0 ? dim + ndim : dim;
}

fsdp::DivideBy divide_by(const FullyShardOptions& options, int ranks) {
  const double all = options.gradient_divide_factor.value_or(ranks);
  require(all > 0, "fully_shard: gradient_divide_factor is ", all);
  const auto& types = options.mp_policy;
  const auto summed_as = types.reduce_dtype ? types.reduce_dtype : types.param_dtype;
  double before = 1;
  if (options.gradient_predivide_factor) {
    before = *options.gradient_predivide_factor;
    require(before > 0, "fully_shard: gradient_predivide_factor is ", before);
  } else if (summed_as == at::kHalf) {
    while (before * before < all) before *= 2;
  }
  return {before, all / before};
}

fsdp::GroupOptions group_options(const FullyShardOptions& options, const DataMesh& mesh) {
  fsdp::GroupOptions out;
  const MixedPrecisionPolicy& types = options.mp_policy;
  for (const auto& dtype : {types.param_dtype, types.reduce_dtype}) {
    require(!dtype || c10::isFloatingType(*dtype), "fully_shard: mixed precision in ",
            c10::toString(dtype.value_or(at::kFloat)), ", which is not a floating-point type");
  }
  require(!types.output_dtype,
          "fully_shard: output_dtype needs something that sees the outputs: give the module's "
          "holder instead of the module, and call what comes back");
  out.param_dtype = types.param_dtype;
  out.reduce_dtype = types.reduce_dtype;
  out.divide_by = divide_by(options, mesh.size());
  out.merge_bytes = options.merge_bytes.value_or(mesh.latency_bytes());
  require(out.merge_bytes >= 0, "fully_shard: merge_bytes is ", out.merge_bytes);
  out.offload = options.offload_policy.has_value();
  out.pin_memory = !options.offload_policy || options.offload_policy->pin_memory;
  return out;
}

/// The parameters that use one mesh.
struct OfMesh {
  DataMesh mesh;
  std::vector<Named> items;
};

OfMesh& of_mesh(std::vector<OfMesh>& all, const DataMesh& mesh) {
  for (OfMesh& one : all) {
    if (one.mesh == mesh) return one;
  }
  return all.emplace_back(OfMesh{mesh, {}});
}

/// The mesh kind that fully_shard assumes for a plain DeviceMesh.
DataParallelMesh by_axes(const DeviceMesh& mesh) {
  require(mesh.defined() && mesh.world() != nullptr, "fully_shard needs a mesh of real ranks");
  require(mesh.ndim() == 1 || mesh.ndim() == 2, "fully_shard over ", mesh,
          ": one axis to shard over, or two, the first for replicas and the second for shards; "
          "take a part of the mesh, "
          "mesh[{\"dp\", \"fs\"}]");
  if (mesh.ndim() == 1) return ShardMesh(mesh);
  return HybridMesh(mesh);
}

/// The kind of a parameter's own mesh: replicated if the call's is, otherwise sharded.
DataParallelMesh like(const DataParallelMesh& main, const DeviceMesh& own) {
  if (std::holds_alternative<ReplicateMesh>(main)) return ReplicateMesh(own);
  return by_axes(own);
}

/// The identity of a module in GroupOptions::module: a number in the form of a pointer, the same in
/// each call and never used for another module. An address is none, since a group may outlive the
/// module that it was made of: its parameters are in other modules too, or in a list. A module that
/// no shared_ptr owns is a new one in each call.
const void* identity_of(torch::nn::Module& module) {
  using Numbers = std::map<std::weak_ptr<torch::nn::Module>, uintptr_t, std::owner_less<>>;
  static std::mutex mutex;
  static Numbers numbers;
  static uintptr_t last = 0;
  const std::weak_ptr<torch::nn::Module> self = module.weak_from_this();
  const std::lock_guard lock(mutex);
  std::erase_if(numbers, [](const auto& item) { return item.first.expired(); });
  uintptr_t of_no_owner = 0;
  uintptr_t& number = self.expired() ? of_no_owner : numbers[self];
  if (number == 0) number = ++last;
  return reinterpret_cast<const void*>(number);
}

/// `module` is an identity_of, used to compare only; nullptr for a list of tensors.
void make_groups(const std::vector<Named>& all, const DataParallelMesh& main,
                 const FullyShardOptions& options, const void* module) {
  const DataMesh main_mesh(main);
  std::vector<OfMesh> free;
  bool has_inner_groups = false;
  std::set<const void*> seen;  // tied parameters have several names
  for (const Named& item : all) {
    if (!item.tensor.defined() || contains(options.ignored_params, item.tensor)) continue;
    if (!seen.insert(item.tensor.unsafeGetTensorImpl()).second) continue;
    if (const auto holder = group_of_parameter(item.tensor)) {
      require(module == nullptr || holder->options().module != module,
              "fully_shard twice on one module; its parameters are a group already");
      require(module != nullptr, "fully_shard: ", item.name, " belongs to a group already");
      has_inner_groups = true;
      continue;
    }
    std::optional<DeviceMesh> own;
    if (options.shard_mesh) own = options.shard_mesh(item.name, item.tensor);
    const DataMesh mesh = own ? DataMesh(like(main, *own)) : main_mesh;
    check(item, mesh.mesh());
    check_device(item, mesh.mesh(), options);
    of_mesh(free, mesh).items.push_back(item);
  }
  fsdp::GroupOptions common = group_options(options, main_mesh);
  common.module = module;
  std::vector<fsdp::GroupOptions> each;
  std::vector<std::vector<ParamGroup::Taken>> taken;
  for (const OfMesh& one : free) {
    const Named& first = one.items[0];
    each.push_back(common);
    each.back().set_reshard_after_forward(options.reshard_after_forward.value_or(!has_inner_groups),
                                          one.mesh);
    taken.emplace_back();
    for (const Named& item : one.items) {
      require(item.tensor.device() == first.tensor.device(), "fully_shard: ", item.name, " is on ",
              item.tensor.device().str(), ", ", first.name, " on ", first.tensor.device().str(),
              "; a group is on one device");
      taken.back().push_back({item.tensor, dim_to_shard(item, options), options.data.source});
    }
  }
  for (size_t i = 0; i < free.size(); ++i) {
    const DataMesh& mesh = free[i].mesh;
    ParamGroup::create(fsdp::GatherScheduler::of(mesh.mesh()), mesh, taken[i], each[i]);
  }
}

std::vector<Named> named(torch::nn::Module& module) {
  std::vector<Named> out;
  for (const auto& item : module.named_parameters()) out.push_back({item.key(), item.value()});
  return out;
}

}  // namespace

void fully_shard(torch::nn::Module& module, const DataParallelMesh& mesh,
                 const FullyShardOptions& options) {
  make_groups(named(module), mesh, options, identity_of(module));
}

void fully_shard(torch::nn::Module& module, const DeviceMesh& mesh,
                 const FullyShardOptions& options) {
  fully_shard(module, by_axes(mesh), options);
}

void fully_shard(std::span<const at::Tensor> parameters, const DeviceMesh& mesh,
                 const FullyShardOptions& options) {
  std::vector<Named> list;
  for (const at::Tensor& tensor : parameters) {
    list.push_back({join_text("parameter ", list.size()), tensor});
  }
  make_groups(list, by_axes(mesh), options, nullptr);
}

void replicate(torch::nn::Module& module, const DeviceMesh& mesh,
               const FullyShardOptions& options) {
  make_groups(named(module), ReplicateMesh(mesh), options, identity_of(module));
}

GatheredMemory gathered_memory(const DeviceMesh& mesh) {
  const auto scheduler = fsdp::GatherScheduler::of(mesh);
  return {scheduler->bytes()->alive.load(), scheduler->bytes()->peak.load()};
}

void reset_peak_gathered_memory(const DeviceMesh& mesh) {
  const auto bytes = fsdp::GatherScheduler::of(mesh)->bytes();
  bytes->peak.store(bytes->alive.load());
}

std::vector<ShardedGroupInfo> sharded_groups(torch::nn::Module& module) {
  std::vector<ShardedGroupInfo> out;
  std::vector<const fsdp::Bucket*> merged;
  for (const auto& group : fsdp::groups_in(module)) {
    const fsdp::Bucket* bucket = group->bucket().get();
    const auto at = std::ranges::find(merged, bucket);
    const auto number = static_cast<size_t>(at - merged.begin());
    if (at == merged.end()) merged.push_back(bucket);
    out.push_back({.parameters = group->params(),
                   .gathered_bytes = group->gather_layout()->gathered_bytes(),
                   .gathered = bucket->is_gathered(),
                   .state = group->state(),
                   .merged = number,
                   .merged_bytes = bucket->gathered_bytes()});
  }
  return out;
}

}  // namespace tessera
