#include "bind/bind.h"

namespace tessera::python {
namespace {

using Names = std::vector<std::string>;

/// An axis by its name or its number, negative ones from the end.
int axis_of(const DeviceMesh& mesh, const py::object& axis) {
  if (py::isinstance<py::str>(axis)) return mesh.axis(axis.cast<std::string>());
  int index = axis.cast<int>();
  if (index < 0) index += mesh.ndim();
  require(index >= 0 && index < mesh.ndim(), "axis ", axis.cast<int>(), " of mesh ", mesh,
          ", which has ", mesh.ndim(), " axes");
  return index;
}

Names names_of(const py::object& key) {
  if (py::isinstance<py::str>(key)) return {key.cast<std::string>()};
  return key.cast<Names>();
}

Names all_names(const DeviceMesh& mesh) {
  Names names;
  for (const auto& axis : mesh.axes()) names.push_back(axis.name);
  return names;
}

std::vector<MeshAxis> axes_from(const std::vector<std::pair<std::string, int>>& axes) {
  std::vector<MeshAxis> out;
  for (const auto& [name, size] : axes) out.push_back({name, size});
  return out;
}

void bind_queries(py::class_<DeviceMesh>& mesh) {
  mesh.def_property_readonly("ndim", &DeviceMesh::ndim)
      .def_property_readonly("shape",
                             [](const DeviceMesh& self) {
                               py::tuple out(self.ndim());
                               for (int a = 0; a < self.ndim(); ++a)
                                 out[static_cast<size_t>(a)] = self.size(a);
                               return out;
                             })
      .def_property_readonly(
          "axis_names", [](const DeviceMesh& self) { return py::tuple(py::cast(all_names(self))); })
      .def_property_readonly("device_type", &DeviceMesh::device)
      .def_property_readonly("ranks", [](const DeviceMesh& self) { return copy_of(self.ranks()); })
      .def("size", [](const DeviceMesh& self) { return self.size(); })
      .def(
          "size",
          [](const DeviceMesh& self, const py::object& axis) {
            return self.size(axis_of(self, axis));
          },
          py::arg("mesh_dim"))
      .def("get_rank", &DeviceMesh::my_rank)
      .def("get_coordinate", [](const DeviceMesh& self) { return self.my_coordinate(); })
      .def(
          "get_local_rank",
          [](const DeviceMesh& self, const std::optional<py::object>& axis) {
            if (axis) return self.local_rank(axis_of(self, *axis));
            require(self.ndim() == 1, "get_local_rank of mesh ", self, " needs an axis");
            return self.local_rank(0);
          },
          py::arg("mesh_dim") = py::none())
      .def("contains_me", &DeviceMesh::contains_me)
      .def("coordinate_of", &DeviceMesh::coordinate_of, py::arg("rank"))
      .def("axis", py::overload_cast<std::string_view>(&DeviceMesh::axis, py::const_),
           py::arg("name"))
      .def("groups", py::overload_cast<std::string_view>(&DeviceMesh::groups, py::const_),
           py::arg("axis"));
}

void bind_derived(py::class_<DeviceMesh>& mesh) {
  mesh.def("__getitem__", [](const DeviceMesh& self,
                             const py::object& key) { return self.submesh(names_of(key)); })
      .def(
          "flatten",
          [](const DeviceMesh& self, const std::string& name, const std::optional<Names>& axes) {
            return axes ? self.flatten(*axes, name) : self.flatten(name);
          },
          py::arg("name"), py::arg("axes") = py::none())
      .def(
          "unflatten",
          [](const DeviceMesh& self, const std::string& name,
             const std::vector<std::pair<std::string, int>>& into) {
            return self.unflatten(name, axes_from(into));
          },
          py::arg("axis"), py::arg("into"))
      .def_static(
          "concatenate",
          [](const std::vector<DeviceMesh>& parts) { return DeviceMesh::concatenate(parts); },
          py::arg("meshes"))
      .def("with_own_rank", &DeviceMesh::with_own_rank, py::arg("rank"));
}

}  // namespace

void bind_mesh(py::module_& m) {
  py::class_<DeviceMesh> mesh(m, "DeviceMesh", R"(Ranks laid out on named axes; an immutable value.

    >>> mesh = tessera.DeviceMesh.parse("dp=2,tp=4")     # no world: plans, does not communicate
    >>> mesh.shape, mesh.axis_names
    ((2, 4), ('dp', 'tp'))
    >>> mesh.with_own_rank(6).get_coordinate()
    [1, 2]
    >>> str(mesh.with_own_rank(6)["tp"])
    'tp=4@4-7'

init_device_mesh makes one that communicates.)");
  mesh.def(py::init([](const std::vector<std::pair<std::string, int>>& axes,
                       const std::optional<std::vector<int>>& ranks, const std::string& device) {
             return ranks ? DeviceMesh(axes_from(axes), *ranks, device)
                          : DeviceMesh(axes_from(axes), device);
           }),
           py::arg("axes"), py::arg("ranks") = py::none(), py::arg("device_type") = "cpu")
      .def_static("parse", &DeviceMesh::parse, py::arg("text"))
      .def("__str__", &DeviceMesh::to_text)
      .def("__repr__", [](const DeviceMesh& self) { return join_text("DeviceMesh(", self, ")"); })
      .def(
          "__eq__", [](const DeviceMesh& a, const DeviceMesh& b) { return a == b; },
          py::is_operator())
      .def("__hash__", &DeviceMesh::hash);
  bind_queries(mesh);
  bind_derived(mesh);
}

}  // namespace tessera::python
