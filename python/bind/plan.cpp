#include "tessera/plan/plan.h"

#include "bind/bind.h"

namespace tessera::python {

void bind_plan(py::module_& m) {
  py::class_<plan::Step>(m, "Step", "One move of a plan.")
      .def_property_readonly("move", [](const plan::Step& s) { return plan::move_name(s.move); })
      .def_readonly("axes", &plan::Step::axes)
      .def_readonly("source", &plan::Step::from)
      .def_readonly("target", &plan::Step::to)
      .def_readonly("bytes", &plan::Step::bytes)
      .def_readonly("seconds", &plan::Step::seconds)
      .def("__str__", &plan::Step::to_text);
  py::class_<plan::Plan>(m, "Plan", "How a tensor gets from one sharding to another.")
      .def_readonly("source", &plan::Plan::from)
      .def_readonly("target", &plan::Plan::to)
      .def_readonly("steps", &plan::Plan::steps)
      .def_property_readonly("bytes", &plan::Plan::bytes)
      .def_property_readonly("seconds", &plan::Plan::seconds)
      .def("communicates", &plan::Plan::communicates)
      .def("__str__", &plan::Plan::to_text);
  m.def(
      "make_plan",
      [](const Sharding& from, const Sharding& to) {
        return plan::make_plan(from, to, cost::default_machine(from.mesh().device()));
      },
      py::arg("source"), py::arg("target"));
}

}  // namespace tessera::python
