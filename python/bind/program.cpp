#include "tessera/interp/program.h"

#include <torch/csrc/autograd/python_variable.h>

#include "bind/bind.h"
#include "tessera/interp/sharded_program.h"

namespace tessera::python {
namespace {

c10::IValue to_ivalue(py::handle object) {
  if (object.is_none()) return {};
  if (THPVariable_Check(object.ptr())) return THPVariable_Unpack(object.ptr());
  if (py::isinstance<py::bool_>(object)) return object.cast<bool>();
  if (py::isinstance<py::int_>(object)) return object.cast<int64_t>();
  if (py::isinstance<py::float_>(object)) return object.cast<double>();
  throw InvalidArgument(join_text("inputs of a program are tensors and numbers, not ",
                                  std::string(py::str(py::type::of(object)))));
}

py::object to_python(const c10::IValue& value) {
  if (value.isTensor()) return py::cast(value.toTensor());
  if (value.isInt()) return py::int_(value.toInt());
  if (value.isDouble()) return py::float_(value.toDouble());
  if (value.isBool()) return py::bool_(value.toBool());
  if (value.isString()) return py::str(value.toStringRef());
  return py::none();
}

Program load(const std::string& path, const std::optional<std::string>& device) {
  ProgramOptions options;
  if (device) options.device = c10::Device(*device);
  return Program::load(path, options);
}

ShardedProgram load_sharded(const std::string& directory,
                            const std::shared_ptr<comm::RankWorld>& world,
                            const std::optional<std::string>& device) {
  ProgramOptions options;
  if (device) options.device = c10::Device(*device);
  return ShardedProgram::load(directory, world, options);
}

template <typename AnyProgram>
py::list run(AnyProgram& program, const py::sequence& inputs) {
  Program::Values values;
  for (const auto& input : inputs) values.push_back(to_ivalue(input));
  {
    const py::gil_scoped_release no_gil;
    values = program.run(std::move(values));
  }
  py::list out;
  for (const auto& value : values) out.append(to_python(value));
  return out;
}

template <typename AnyProgram>
py::dict run_named(AnyProgram& program, const py::dict& inputs) {
  Program::NamedValues values;
  for (const auto& [name, input] : inputs) {
    values.emplace_back(py::cast<std::string>(name), to_ivalue(input));
  }
  {
    const py::gil_scoped_release no_gil;
    values = program.run_named(values);
  }
  py::dict out;
  for (const auto& [name, value] : values) out[py::str(name)] = to_python(value);
  return out;
}

std::vector<std::string> names_of(const std::vector<ProgramPort>& ports) {
  std::vector<std::string> out;
  for (const auto& port : ports) out.push_back(port.name);
  return out;
}

}  // namespace

void bind_program(py::module_& m) {
  py::class_<Program>(m, "Program")
      .def_static("load", &load, py::arg("path"), py::arg("device") = py::none(), NoGil())
      .def("run", &run<Program>, py::arg("inputs"))
      .def("run_named", &run_named<Program>, py::arg("inputs"))
      .def("tensor", &Program::tensor, py::arg("name"))
      .def_property_readonly("input_names", [](const Program& p) { return names_of(p.inputs()); })
      .def_property_readonly("output_names", [](const Program& p) { return names_of(p.outputs()); })
      .def_property_readonly("path", &Program::path);
  py::class_<ShardedProgram>(m, "ShardedProgram")
      .def_static("load", &load_sharded, py::arg("directory"), py::arg("world"),
                  py::arg("device") = py::none(), NoGil())
      .def("run", &run<ShardedProgram>, py::arg("inputs"))
      .def("run_named", &run_named<ShardedProgram>, py::arg("inputs"))
      .def_property_readonly("mesh", [](const ShardedProgram& p) { return p.mesh().to_text(); })
      .def_property_readonly("input_names",
                             [](const ShardedProgram& p) { return names_of(p.local().inputs()); })
      .def_property_readonly("output_names",
                             [](const ShardedProgram& p) { return names_of(p.local().outputs()); });
}

}  // namespace tessera::python
