#pragma once

#include <pybind11/functional.h>
#include <torch/csrc/utils/pybind.h>

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "tessera/base/errors.h"
#include "tessera/mesh/device_mesh.h"
#include "tessera/sharding/sharding.h"

/// The bindings: one short file a room, each with one function that fills the module. A room that
/// comes later adds its file and its line here and in module.cpp.
///
/// Whatever may wait for another rank gives up the GIL: bound functions by `NoGil`, torch's own
/// functions by the hook that bind_comm sets (collective/may_block.h).
namespace tessera::python {

namespace py = pybind11;
using NoGil = py::call_guard<py::gil_scoped_release>;

void bind_errors(py::module_& m);
void bind_mesh(py::module_& m);
void bind_sharding(py::module_& m);
void bind_plan(py::module_& m);
void bind_rules(py::module_& m);
void bind_comm(py::module_& m);
void bind_ranks(py::module_& m);
void bind_dtensor(py::module_& m);
void bind_policy(py::module_& m);
void bind_factories(py::module_& m);
void bind_explain(py::module_& m);
void bind_fsdp(py::module_& m);
void bind_program(py::module_& m);
void bind_partition(py::module_& m);
void bind_checkpoint(py::module_& m);
void bind_context_parallel(py::module_& m);
void bind_expert_parallel(py::module_& m);
void bind_parallel(py::module_& m);

/// Arguments as a user writes them: "S0,R", [Shard(0), Replicate()], one placement for one axis,
/// ours or PyTorch's.
struct PlacementList {
  std::vector<Placement> list;
};

Placement to_placement(py::handle object);
PlacementList to_placements(py::handle object);

template <typename T>
std::vector<T> copy_of(std::span<const T> values) {
  return {values.begin(), values.end()};
}

template <typename T>
py::tuple tuple_of(std::span<const T> values) {
  py::tuple out(values.size());
  for (size_t i = 0; i < values.size(); ++i) out[i] = py::cast(values[i]);
  return out;
}

}  // namespace tessera::python

namespace pybind11::detail {

template <>
struct type_caster<tessera::python::PlacementList> {
  PYBIND11_TYPE_CASTER(tessera::python::PlacementList, const_name("Placements"));
  bool load(handle source, bool) {
    value = tessera::python::to_placements(source);
    return true;
  }
};

}  // namespace pybind11::detail
