#include "bind/bind.h"
#include "tessera/base/errors.h"
#include "tessera/base/path_pattern.h"
#include "tessera/dtensor/dtensor.h"
#include "tessera/dtensor/kernels/weight_style.h"
#include "tessera/dtensor/redistribute_once.h"
#include "tessera/parallel/anchor.h"

namespace tessera::python {
namespace {

/// The style of a Linear's weight whose products overlap with communication. In Python the layouts
/// of plain tensors are the hooks' part.
void overlap_weight(const at::Tensor& weight, const DeviceMesh& mesh, int64_t pieces,
                    const std::optional<Placement>& output) {
  require(pieces >= 1, "overlap is ", pieces, " pieces");
  parallel::Anchor anchor{.family = parallel::OpFamily::linear,
                          .mesh = mesh,
                          .axis = mesh.axis_name(0),
                          .text = output ? "RowwiseParallel" : "ColwiseParallel",
                          .output = output,
                          .overlap = pieces};
  anchor.input_by_features = output.has_value();
  if (!output) anchor.input = Replicate();
  dtensor::set_weight_style(weight, parallel::anchored_style({anchor}));
}

/// On a mesh of one axis.
at::Tensor redistribute_once(const at::Tensor& tensor, Placement layout) {
  return dtensor::redistribute_once(tensor, sharding(tensor).with(0, std::move(layout)));
}

}  // namespace

void bind_parallel(py::module_& m) {
  m.def("overlap_weight", &overlap_weight, py::arg("weight"), py::arg("mesh"), py::arg("pieces"),
        py::arg("output") = py::none());
  m.def("matches_path", &matches_path, py::arg("pattern"), py::arg("path"));
  m.def("redistribute_once", &redistribute_once, py::arg("tensor"), py::arg("layout"));
}

}  // namespace tessera::python
