#include "tessera/dtensor/factories.h"

#include <pybind11/complex.h>

#include <array>

#include "bind/bind.h"

namespace tessera::python {
namespace {

using DTypeArg = std::optional<at::ScalarType>;
using Sizes = std::vector<int64_t>;

at::TensorOptions options_of(DTypeArg dtype, bool requires_grad) {
  auto options = at::TensorOptions().requires_grad(requires_grad);
  return dtype ? options.dtype(*dtype) : options;
}

/// torch's own caster only goes the other way.
at::Scalar scalar_of(const py::handle& number) {
  if (py::isinstance<py::bool_>(number)) return number.cast<bool>();
  if (py::isinstance<py::int_>(number)) return number.cast<int64_t>();
  if (PyComplex_Check(number.ptr()))
    return c10::complex<double>(number.cast<std::complex<double>>());
  return number.cast<double>();
}

/// The factories that take a shape and nothing else.
using OfShape = at::Tensor (*)(at::IntArrayRef, const DeviceMesh&, const Placements&,
                               const at::TensorOptions&);

void bind_of_shape(py::module_& m, const char* name, OfShape make) {
  m.def(
      name,
      [make](const Sizes& shape, const DeviceMesh& mesh, PlacementList placements, DTypeArg dtype,
             bool requires_grad) {
        return make(shape, mesh, placements.list, options_of(dtype, requires_grad));
      },
      NoGil());
}

}  // namespace

void bind_factories(py::module_& m) {
  bind_of_shape(m, "empty", &empty);
  bind_of_shape(m, "zeros", &zeros);
  bind_of_shape(m, "ones", &ones);
  bind_of_shape(m, "rand", &rand);
  bind_of_shape(m, "randn", &randn);
  m.def("full", [](const Sizes& shape, const py::object& value, const DeviceMesh& mesh,
                   PlacementList placements, DTypeArg dtype, bool requires_grad) {
    const at::Scalar number = scalar_of(value);
    const py::gil_scoped_release others_may_run;
    return full(shape, number, mesh, placements.list, options_of(dtype, requires_grad));
  });
  m.def("arange", [](const py::object& start, const py::object& end, const py::object& step,
                     const DeviceMesh& mesh, PlacementList placements, DTypeArg dtype,
                     bool requires_grad) {
    const std::array<at::Scalar, 3> range = {scalar_of(start), scalar_of(end), scalar_of(step)};
    const py::gil_scoped_release others_may_run;
    return arange(range[0], range[1], range[2], mesh, placements.list,
                  options_of(dtype, requires_grad));
  });
  m.def(
      "eye",
      [](int64_t rows, int64_t columns, const DeviceMesh& mesh, PlacementList placements,
         DTypeArg dtype, bool requires_grad) {
        return eye(rows, columns, mesh, placements.list, options_of(dtype, requires_grad));
      },
      NoGil());
}

}  // namespace tessera::python
