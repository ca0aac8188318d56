#include "tessera/dtensor/dtensor.h"

#include <torch/csrc/autograd/python_variable.h>

#include "bind/bind.h"
#include "tessera/dtensor/dispatch/caches.h"
#include "tessera/dtensor/read_whole.h"
#include "tessera/module/distribute_module.h"
#include "tessera/sharding/mesh_order.h"

namespace tessera::python {
namespace {

using Shape = std::optional<std::vector<int64_t>>;

std::vector<Placement> or_none(std::optional<PlacementList> placements) {
  return placements ? std::move(placements->list) : std::vector<Placement>();
}

void bind_crossings(py::module_& m) {
  m.def(
      "from_local",
      [](const at::Tensor& local, const DeviceMesh& mesh, PlacementList placements, Shape shape,
         Shape stride, bool run_check, bool even, std::optional<PlacementList> grad_placements) {
        return from_local(local, mesh, std::move(placements.list),
                          {.shape = std::move(shape),
                           .stride = std::move(stride),
                           .run_check = run_check,
                           .even = even,
                           .grad_placements = or_none(std::move(grad_placements))});
      },
      NoGil());
  m.def(
      "to_local",
      [](const at::Tensor& tensor, std::optional<PlacementList> grad_placements) {
        return to_local(tensor, {.grad_placements = or_none(std::move(grad_placements))});
      },
      NoGil());
  m.def(
      "full_tensor",
      [](const at::Tensor& tensor, std::optional<PlacementList> grad_placements) {
        return full_tensor(tensor, {.grad_placements = or_none(std::move(grad_placements))});
      },
      NoGil());
  m.def(
      "read_whole",
      [](const at::Tensor& tensor, const std::string& method) {
        return dtensor::read_whole(tensor, method);
      },
      NoGil());
  m.def(
      "distribute_tensor",
      [](const at::Tensor& full, const DeviceMesh& mesh, PlacementList placements,
         std::optional<int> source) {
        return distribute_tensor(full, mesh, std::move(placements.list), {.source = source});
      },
      NoGil());
  m.def(
      "distribute_",
      [](const at::Tensor& tensor, const DeviceMesh& mesh, PlacementList placements,
         std::optional<int> source) {
        distribute_(tensor, mesh, std::move(placements.list), {.source = source});
      },
      NoGil());
  m.def(
      "distribute_all_",
      [](const std::vector<at::Tensor>& tensors, const DeviceMesh& mesh, PlacementList placements,
         std::optional<int> source) {
        distribute_(tensors, mesh, placements.list, {.source = source});
      },
      NoGil());
}

void bind_gradients(py::module_& m) {
  m.def(
      "reduce_gradients",
      [](const std::vector<at::Tensor>& parameters) { reduce_gradients(parameters); }, NoGil());
}

void bind_redistribute(py::module_& m) {
  using DTypeArg = std::optional<at::ScalarType>;
  m.def(
      "redistribute",
      [](const at::Tensor& tensor, const DeviceMesh& mesh, PlacementList placements,
         DTypeArg forward_dtype, DTypeArg backward_dtype) {
        return redistribute(tensor, mesh, std::move(placements.list),
                            {.forward_dtype = forward_dtype, .backward_dtype = backward_dtype});
      },
      NoGil());
  m.def(
      "redistribute_to",
      [](const at::Tensor& tensor, const Sharding& to, DTypeArg forward_dtype,
         DTypeArg backward_dtype) {
        return redistribute(tensor, to,
                            {.forward_dtype = forward_dtype, .backward_dtype = backward_dtype});
      },
      NoGil());
  py::class_<PendingTensor>(m, "PendingTensor", "A redistribution under way.")
      .def("wait", &PendingTensor::wait, NoGil(),
           "Waits for the communication and returns the tensor; once.")
      .def("done", &PendingTensor::done, "Whether wait() would return at once.");
  m.def(
      "redistribute_async",
      [](const at::Tensor& tensor, const Sharding& to, DTypeArg forward_dtype,
         DTypeArg backward_dtype) {
        return redistribute_async(
            tensor, to, {.forward_dtype = forward_dtype, .backward_dtype = backward_dtype});
      },
      NoGil());
}

void bind_caches(py::module_& m) {
  m.def(
      "cache_stats",
      [] {
        const CacheStats stats = cache_stats();
        return py::dict(
            py::arg("decisions") = stats.decisions, py::arg("decision_hits") = stats.decision_hits,
            py::arg("decision_misses") = stats.decision_misses,
            py::arg("decision_bytes") = stats.decision_bytes, py::arg("plans") = stats.plans,
            py::arg("plan_hits") = stats.plan_hits, py::arg("plan_misses") = stats.plan_misses,
            py::arg("programs") = stats.programs, py::arg("shardings") = stats.shardings,
            py::arg("pooled_bytes") = stats.pooled_bytes);
      },
      "Entries, hits and misses of what is kept for speed; see docs/performance.md.");
  m.def("clear_caches", &clear_caches,
        "Frees kept decisions, plans, programs and message buffers; they are made again when "
        "needed.");
}

}  // namespace

void bind_dtensor(py::module_& m) {
  m.def("is_dtensor", [](const py::handle& object) {
    return THPVariable_Check(object.ptr()) && is_dtensor(THPVariable_Unpack(object.ptr()));
  });
  m.def("sharding", [](const at::Tensor& tensor) { return sharding(tensor); });
  m.def("placements_in_mesh_order", [](const Sharding& sharding) {
    const auto list = placements_in_mesh_order(sharding);
    return tuple_of(std::span<const Placement>(list));
  });
  m.def("placements", [](const at::Tensor& tensor) {
    const auto list = placements(tensor);
    return tuple_of(std::span<const Placement>(list));
  });
  m.def("device_mesh", [](const at::Tensor& tensor) { return device_mesh(tensor); });
  bind_crossings(m);
  bind_redistribute(m);
  bind_gradients(m);
  bind_caches(m);
}

}  // namespace tessera::python
