#include "tessera/dtensor/factories.h"

#include "bind/bind.h"

namespace tessera::python {
namespace {

using DTypeArg = std::optional<at::ScalarType>;
using Shape = std::vector<int64_t>;

at::TensorOptions options_of(DTypeArg dtype, bool requires_grad) {
  auto options = at::TensorOptions().requires_grad(requires_grad);
  return dtype ? options.dtype(*dtype) : options;
}

/// The factories that take a shape and nothing else.
using OfShape = at::Tensor (*)(at::IntArrayRef, const DeviceMesh&, const Placements&,
                               const at::TensorOptions&);

void bind_of_shape(py::module_& m, const char* name, OfShape make) {
  m.def(
      name,
      [make](const Shape& shape, const DeviceMesh& mesh, PlacementList placements, DTypeArg dtype,
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
  m.def(
      "full",
      [](const Shape& shape, const at::Scalar& value, const DeviceMesh& mesh,
         PlacementList placements, DTypeArg dtype, bool requires_grad) {
        return full(shape, value, mesh, placements.list, options_of(dtype, requires_grad));
      },
      NoGil());
  m.def(
      "arange",
      [](const at::Scalar& start, const at::Scalar& end, const at::Scalar& step,
         const DeviceMesh& mesh, PlacementList placements, DTypeArg dtype, bool requires_grad) {
        return arange(start, end, step, mesh, placements.list, options_of(dtype, requires_grad));
      },
      NoGil());
  m.def(
      "eye",
      [](int64_t rows, int64_t columns, const DeviceMesh& mesh, PlacementList placements,
         DTypeArg dtype, bool requires_grad) {
        return eye(rows, columns, mesh, placements.list, options_of(dtype, requires_grad));
      },
      NoGil());
}

}  // namespace tessera::python
