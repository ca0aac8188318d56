#include "tessera/parallel/experts/expert_parallel.h"

#include <pybind11/stl.h>

#include "bind/bind.h"

namespace tessera::python {

void bind_expert_parallel(py::module_& m) {
  py::class_<ExpertLoad>(m, "ExpertLoad")
      .def_readonly("routed", &ExpertLoad::routed)
      .def_readonly("kept", &ExpertLoad::kept)
      .def_readonly("capacity", &ExpertLoad::capacity)
      .def_property_readonly("dropped", &ExpertLoad::dropped)
      .def_property_readonly("imbalance", &ExpertLoad::imbalance)
      .def("__str__", &ExpertLoad::to_text);
  py::class_<ExpertRows>(m, "ExpertRows")
      .def_readonly("counts", &ExpertRows::counts)
      .def_readonly("first_expert", &ExpertRows::first_expert)
      .def("matmul", &ExpertRows::matmul, py::arg("rows"), py::arg("weight"));
  m.def(
      "expert_parallel",
      [](const at::Tensor& tokens, const at::Tensor& choice, const at::Tensor& gate,
         const ExpertFunction& function, int64_t experts, std::string axis,
         std::optional<double> capacity_factor, const std::optional<DeviceMesh>& mesh,
         std::vector<std::string> token_axes) {
        const ExpertOptions options{experts, std::move(axis), capacity_factor};
        ExpertResult result = mesh ? expert_parallel_local(tokens, choice, gate, function, *mesh,
                                                           options, std::move(token_axes))
                                   : expert_parallel(tokens, choice, gate, function, options);
        return std::make_pair(std::move(result.out), std::move(result.load));
      },
      py::arg("tokens"), py::arg("choice"), py::arg("gate"), py::arg("function"),
      py::arg("experts"), py::arg("axis"), py::arg("capacity_factor"), py::arg("mesh"),
      py::arg("token_axes"));
}

}  // namespace tessera::python
