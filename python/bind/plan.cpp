#include "tessera/plan/plan.h"

#include "bind/bind.h"

namespace tessera::python {

namespace {

void bind_machine(py::module_& m) {
  using cost::Link;
  using cost::Machine;
  const Machine usual;
  py::class_<Link>(m, "Link", "What a collective costs on one kind of link.")
      .def(py::init<double, double, double>(), py::arg("start_s"), py::arg("hop_s"),
           py::arg("bytes_per_s"))
      .def_readonly("start_s", &Link::start_s)
      .def_readonly("hop_s", &Link::hop_s)
      .def_readonly("bytes_per_s", &Link::bytes_per_s);
  py::class_<Machine>(m, "Machine", R"(What plans are priced with.

    >>> fast = tessera.Machine(ranks_per_host=4, across_hosts=tessera.Link(1e-5, 2e-6, 50e9))
    >>> tessera.set_default_machine("cuda", fast)          # alike on every rank
    >>> tessera.default_machine("cuda").ranks_per_host
    4
    >>> tessera.set_default_machine("cuda", tessera.Machine()))")
      .def(py::init<int, Link, Link, double, double>(), py::kw_only(),
           py::arg("ranks_per_host") = usual.ranks_per_host,
           py::arg("within_host") = usual.within_host, py::arg("across_hosts") = usual.across_hosts,
           py::arg("copy_start_s") = usual.copy_start_s,
           py::arg("copy_bytes_per_s") = usual.copy_bytes_per_s)
      .def_readonly("ranks_per_host", &Machine::ranks_per_host)
      .def_readonly("within_host", &Machine::within_host)
      .def_readonly("across_hosts", &Machine::across_hosts)
      .def_readonly("copy_start_s", &Machine::copy_start_s)
      .def_readonly("copy_bytes_per_s", &Machine::copy_bytes_per_s);
  m.def("default_machine", &cost::default_machine, py::arg("device"));
  m.def("set_default_machine", &cost::set_default_machine, py::arg("device"), py::arg("machine"));
}

}  // namespace

void bind_plan(py::module_& m) {
  bind_machine(m);
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
      [](const Sharding& from, const Sharding& to, const std::optional<cost::Machine>& machine) {
        return plan::make_plan(from, to,
                               machine ? *machine : cost::default_machine(from.mesh().device()));
      },
      py::arg("source"), py::arg("target"), py::arg("machine") = py::none());
}

}  // namespace tessera::python
