#include <c10/core/InferenceMode.h>
#include <torch/nn/module.h>

#include <algorithm>
#include <map>

#include "bind/bind.h"
#include "tessera/dtensor/tensor/lazy.h"
#include "tessera/fsdp/compute_dtype.h"
#include "tessera/fsdp/convert.h"
#include "tessera/fsdp/fully_shard.h"
#include "tessera/fsdp/overlap.h"
#include "tessera/fsdp/param_group.h"
#include "tessera/fsdp/unsharded.h"
#include "tessera/module/clip_grad.h"
#include "tessera/module/state.h"
#include "tessera/module/to_empty.h"

namespace tessera::python {
namespace {

/// A Python module as a C++ one: the same names, and handles to the same tensors. Whatever the room
/// does to a module in place, it does to the Python one through it.
struct ModuleMirror {
  std::shared_ptr<torch::nn::Module> module;
};

using Seen = std::map<PyObject*, std::shared_ptr<torch::nn::Module>>;

void add_parameter(torch::nn::Module& to, const std::string& name, const at::Tensor& parameter) {
  // register_parameter sets requires_grad, which inference tensors refuse outside of the mode.
  const c10::InferenceMode mode(parameter.is_inference());
  to.register_parameter(name, parameter, parameter.requires_grad());
}

std::shared_ptr<torch::nn::Module> mirror(const py::handle& source, Seen& seen) {
  auto& out = seen[source.ptr()];
  if (out != nullptr) return out;
  out = std::make_shared<torch::nn::Module>();
  const auto result = out;
  for (const auto& [name, value] : source.attr("_parameters").cast<py::dict>()) {
    if (value.is_none()) continue;
    add_parameter(*result, name.cast<std::string>(), value.cast<at::Tensor>());
  }
  const auto not_saved = source.attr("_non_persistent_buffers_set").cast<py::set>();
  for (const auto& [name, value] : source.attr("_buffers").cast<py::dict>()) {
    if (value.is_none() || not_saved.contains(name)) continue;
    result->register_buffer(name.cast<std::string>(), value.cast<at::Tensor>());
  }
  for (const auto& [name, value] : source.attr("_modules").cast<py::dict>()) {
    if (!value.is_none()) result->register_module(name.cast<std::string>(), mirror(value, seen));
  }
  return result;
}

ModuleMirror mirror_of_module(const py::object& source) {
  Seen seen;
  return {mirror(source, seen)};
}

/// Several modules, or parameters of any modules, as one.
ModuleMirror mirror_of_list(const py::list& sources) {
  Seen seen;
  ModuleMirror out{std::make_shared<torch::nn::Module>()};
  for (size_t i = 0; i < sources.size(); ++i) {
    const py::object source = sources[i];
    if (py::hasattr(source, "_parameters")) {
      out.module->register_module(std::to_string(i), mirror(source, seen));
    } else {
      add_parameter(*out.module, std::to_string(i), source.cast<at::Tensor>());
    }
  }
  return out;
}

/// An entry of a dict, or what an option is by default.
template <typename T>
void take(const py::dict& given, const char* name, T& option) {
  if (given.contains(name) && !given[name].is_none()) option = given[name].cast<T>();
}

FullyShardOptions options_from(const py::dict& given) {
  FullyShardOptions options;
  take(given, "reshard_after_forward", options.reshard_after_forward);
  take(given, "ignored_params", options.ignored_params);
  take(given, "gradient_divide_factor", options.gradient_divide_factor);
  take(given, "gradient_predivide_factor", options.gradient_predivide_factor);
  take(given, "merge_bytes", options.merge_bytes);
  take(given, "param_dtype", options.mp_policy.param_dtype);
  take(given, "reduce_dtype", options.mp_policy.reduce_dtype);
  if (given.contains("offload_pinned")) {
    options.offload_policy = CPUOffloadPolicy{.pin_memory = given["offload_pinned"].cast<bool>()};
  }
  options.data.source = given["src_data_rank"].cast<std::optional<int>>();
  // Asked for all parameters before: while ranks wait for each other no thread holds the GIL.
  options.shard_dim = [dims = given["shard_dims"].cast<std::map<std::string, int>>()](
                          const std::string& name, const at::Tensor&) -> std::optional<int> {
    const auto found = dims.find(name);
    return found == dims.end() ? std::nullopt : std::optional(found->second);
  };
  options.shard_mesh = [meshes = given["shard_meshes"].cast<std::map<std::string, DeviceMesh>>()](
                           const std::string& name,
                           const at::Tensor&) -> std::optional<DeviceMesh> {
    const auto found = meshes.find(name);
    return found == meshes.end() ? std::nullopt : std::optional(found->second);
  };
  return options;
}

template <auto kShard>
void shard(const ModuleMirror& mirror, const DeviceMesh& mesh, const py::dict& given) {
  const FullyShardOptions options = options_from(given);
  const py::gil_scoped_release others_may_run;
  kShard(*mirror.module, mesh, options);
}

constexpr auto kFullyShard =
    static_cast<void (*)(torch::nn::Module&, const DeviceMesh&, const FullyShardOptions&)>(
        &fully_shard);

/// Whether this thread has the interpreter's lock or may wait for it. Once the interpreter
/// finalizes, a thread that waits for the lock is ended, in a destructor with the process.
bool may_take_the_lock() {
  if (Py_IsInitialized() == 0) return false;
#if PY_VERSION_HEX >= 0x030D0000
  const bool ends = Py_IsFinalizing() != 0;
#else
  const bool ends = _Py_IsFinalizing() != 0;
#endif
  return !ends || PyGILState_Check() != 0;
}

/// What a Python collective returned: something to wait for.
class PythonWork : public c10d::Work {
 public:
  explicit PythonWork(py::object work)
      : work_(new py::object(std::move(work)), [](py::object* object) {
          if (!may_take_the_lock()) return;  // goes with the process
          const py::gil_scoped_acquire lock;
          delete object;
        }) {}
  bool wait(std::chrono::milliseconds /*timeout*/) override {
    const py::gil_scoped_acquire lock;
    work_->attr("wait")();
    return true;
  }

 private:
  std::shared_ptr<py::object> work_;
};

using Exchange = decltype(Collectives::all_gather);

/// Python sees groups by name, as torch.distributed resolves them.
Exchange exchange_from(const py::object& function) {
  if (function.is_none()) return {};
  return [call = function.cast<std::function<py::object(Tensors, Tensors, std::string, bool)>>()](
             Tensors& outputs, Tensors& inputs, const comm::Group& group, bool async) -> WorkPtr {
    const py::gil_scoped_acquire lock;
    py::object work = call(outputs, inputs, group.name(), async);
    if (work.is_none()) return nullptr;
    return c10::make_intrusive<PythonWork>(std::move(work));
  };
}

void bind_collectives(py::module_& m) {
  m.def("set_collectives", [](const ModuleMirror& mirror, const py::object& all_gather,
                              const py::object& reduce_scatter, const py::object& all_reduce,
                              const py::object& allocate) {
    Collectives own{.all_gather = exchange_from(all_gather),
                    .reduce_scatter = exchange_from(reduce_scatter)};
    if (!all_reduce.is_none()) {
      own.all_reduce =
          [call = all_reduce.cast<std::function<void(Tensors, std::optional<std::string>)>>()](
              Tensors& tensors, const comm::Group* replicas, bool) {
            call(tensors, replicas == nullptr ? std::nullopt : std::optional(replicas->name()));
            return WorkPtr();
          };
    }
    if (!allocate.is_none()) {
      own.allocate = allocate.cast<std::function<at::Tensor(int64_t, at::Device)>>();
    }
    set_collectives(*mirror.module, own);
  });
}

void bind_state(py::module_& m) {
  m.def(
      "full_state_dict",
      [](const ModuleMirror& mirror, bool rank0_only) {
        return full_state_dict(*mirror.module, {.rank0_only = rank0_only});
      },
      NoGil());
  m.def(
      "load_full_state_dict",
      [](const ModuleMirror& mirror, const FullStateDict& state, bool rank0_only) {
        load_full_state_dict(*mirror.module, state, {.rank0_only = rank0_only});
      },
      NoGil());
  m.def("sharded_state_dict",
        [](const ModuleMirror& mirror) { return sharded_state_dict(*mirror.module); });
  m.def(
      "load_sharded_state_dict",
      [](const ModuleMirror& mirror, const NamedTensors& state) {
        load_sharded_state_dict(*mirror.module, state);
      },
      NoGil());
  m.def(
      "clip_grad_norm_",
      [](const std::vector<at::Tensor>& parameters, double max_norm, double norm_type,
         bool error_if_nonfinite) {
        return clip_grad_norm_(parameters, max_norm,
                               {.norm_type = norm_type, .error_if_nonfinite = error_if_nonfinite});
      },
      NoGil());
}

/// A function of the room that takes a module and values.
template <typename... Args>
auto on_mirror(void (*function)(torch::nn::Module&, Args...)) {
  return
      [function](const ModuleMirror& mirror, Args... args) { function(*mirror.module, args...); };
}

template <auto kSet>
void prefetch(const ModuleMirror& mirror, const std::vector<ModuleMirror>& others) {
  std::vector<torch::nn::Module*> modules;
  for (const auto& other : others) modules.push_back(other.module.get());
  kSet(*mirror.module, modules);
}

void bind_control(py::module_& m) {
  py::class_<UnshardHandle>(m, "UnshardHandle").def("wait", &UnshardHandle::wait, NoGil());
  m.def("unshard", on_mirror(&unshard), NoGil());
  m.def("reshard", on_mirror(&reshard), NoGil());
  m.def(
      "unshard_async", [](const ModuleMirror& mirror) { return unshard_async(*mirror.module); },
      NoGil());
  m.def("set_reshard_after_forward", on_mirror(&set_reshard_after_forward), NoGil());
  m.def("set_reshard_after_backward", on_mirror(&set_reshard_after_backward), NoGil());
  m.def("set_requires_gradient_sync", on_mirror(&set_requires_gradient_sync), NoGil());
  m.def("set_requires_all_reduce", on_mirror(&set_requires_all_reduce), NoGil());
  m.def("set_gradient_divide_factor", on_mirror(&set_gradient_divide_factor), NoGil());
  m.def("set_reduce_unused_parameters", on_mirror(&set_reduce_unused_parameters), NoGil());
  m.def("set_forward_prefetch", prefetch<&set_modules_to_forward_prefetch>);
  m.def("set_backward_prefetch", prefetch<&set_modules_to_backward_prefetch>);
}

/// A ParamGroup by its base, whose functions are virtual: the class itself is not exported.
struct GroupHandle {
  std::shared_ptr<dtensor::LazyGroup> group;
  void suspend() const { group->suspend(); }
  void resume() const { group->resume(); }
  bool operator==(const GroupHandle&) const = default;
};

/// For parallelize_module after fully_shard.
void bind_groups(py::module_& m) {
  py::class_<GroupHandle>(m, "ParamGroup")
      .def("suspend", &GroupHandle::suspend, NoGil())
      .def("resume", &GroupHandle::resume, NoGil());
  m.def("parameter_groups", [](const std::vector<at::Tensor>& parameters) {
    std::vector<GroupHandle> out;  // in the order of the parameters
    for (const at::Tensor& parameter : parameters) {
      const GroupHandle handle{fsdp::group_of_parameter(parameter)};
      if (handle.group != nullptr && std::ranges::find(out, handle) == out.end()) {
        out.push_back(handle);
      }
    }
    return out;
  });
  m.def("is_parallel_on", [](const at::Tensor& parameter, const DeviceMesh& mesh) {
    const auto place = fsdp::place_of_parameter(parameter);
    if (place.group == nullptr) return false;
    const auto& inner = place.group->inner(place.index);
    return inner && inner->mesh() == mesh;
  });
}

void bind_compute_dtype(py::module_& m) {
  using fsdp::ComputeDtypeScope;
  py::class_<ComputeDtypeScope>(m, "ComputeDtypeScope")
      .def(py::init(
          [](const std::vector<at::Tensor>& parameters) { return ComputeDtypeScope(parameters); }))
      .def("empty", &ComputeDtypeScope::empty)
      .def("switches_dtype", &ComputeDtypeScope::switches_dtype)
      .def("enter", &ComputeDtypeScope::enter)
      .def("leave", &ComputeDtypeScope::leave)
      .def("rest", &ComputeDtypeScope::rest)
      .def("watch", [](const ComputeDtypeScope& scope, const std::vector<at::Tensor>& outputs) {
        scope.watch(outputs);
      });
}

void bind_reports(py::module_& m) {
  m.def("communication_time", [](const comm::Recorder& recorder) {
    const CommunicationTime time = communication_time(recorder);
    const auto tuple_of_kind = [](const MessageSeconds& kind) {
      return py::make_tuple(kind.messages, kind.under_way_s, kind.exposed_s);
    };
    return py::make_tuple(tuple_of_kind(time.gathers), tuple_of_kind(time.reductions));
  });
  py::class_<StepTrace>(m, "StepTrace")
      .def(py::init<const DeviceMesh&>())
      .def("json", &StepTrace::json);
  m.def("sharded_groups", [](const ModuleMirror& mirror) {
    py::list out;
    for (const auto& group : sharded_groups(*mirror.module)) {
      out.append(py::dict(
          py::arg("parameters") = group.parameters,
          py::arg("gathered_bytes") = group.gathered_bytes, py::arg("gathered") = group.gathered,
          py::arg("state") = std::string(to_text(group.state)), py::arg("merged") = group.merged,
          py::arg("merged_bytes") = group.merged_bytes));
    }
    return out;
  });
  m.def("gathered_memory", [](const DeviceMesh& mesh) {
    const GatheredMemory memory = gathered_memory(mesh);
    return py::make_tuple(memory.bytes, memory.peak_bytes);
  });
  m.def("reset_peak_gathered_memory", &reset_peak_gathered_memory);
}

}  // namespace

void bind_fsdp(py::module_& m) {
  py::class_<ModuleMirror>(m, "ModuleMirror")
      .def(py::init(&mirror_of_list))
      .def(py::init(&mirror_of_module));
  m.def("fully_shard", shard<kFullyShard>);
  m.def("replicate_module", shard<&replicate>);
  bind_compute_dtype(m);
  bind_control(m);
  m.def(
      "to_empty",
      [](const ModuleMirror& mirror, at::Device device) { to_empty(*mirror.module, device); },
      NoGil());
  m.def("convert_shards", [](const std::vector<at::Tensor>& parameters,
                             const std::function<at::Tensor(const at::Tensor&)>& convert) {
    convert_shards(parameters, convert);
  });
  m.def("replace_parameter", &replace_parameter);
  bind_groups(m);
  m.def("in_group",
        [](const at::Tensor& parameter) { return fsdp::group_of_parameter(parameter) != nullptr; });
  m.def("is_in_compute", &fsdp::is_in_compute);
  m.def("unsharded_parameter", &unsharded_parameter, NoGil());
  m.def("unsharded_sharding", [](const at::Tensor& parameter) -> std::optional<Sharding> {
    const auto place = fsdp::place_of_parameter(parameter);
    if (place.group == nullptr) return std::nullopt;
    return place.group->inner(place.index);
  });
  bind_reports(m);
  bind_collectives(m);
  bind_state(m);
}

}  // namespace tessera::python
