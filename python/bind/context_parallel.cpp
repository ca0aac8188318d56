#include "tessera/parallel/context/context_parallel.h"

#include <pybind11/stl.h>

#include "bind/bind.h"

namespace tessera::python {
namespace {

ContextParallelOptions context_options(const std::string& method, const SequenceOrder& order,
                                       std::vector<std::vector<int64_t>> documents,
                                       const std::string& kernel) {
  return {.method = context_method_from_name(method),
          .order = order,
          .documents = std::move(documents),
          .kernel = attention_kernel_from_name(kernel)};
}

/// ContextParallel as a context manager: entered and left on one thread.
struct ContextScope {
  std::string axis;
  ContextParallelOptions options;
  std::vector<std::unique_ptr<ContextParallel>> open{};
};

void bind_order(py::module_& m) {
  py::class_<SequenceOrder>(m, "SequenceOrder")
      .def(py::init<>())
      .def_static("head_tail", &SequenceOrder::head_tail, py::arg("length"), py::arg("ranks"))
      .def_static(
          "head_tail_of_documents",
          [](const std::vector<int64_t>& lengths, int ranks) {
            return SequenceOrder::head_tail_of_documents(lengths, ranks);
          },
          py::arg("lengths"), py::arg("ranks"))
      .def_static(
          "of_positions",
          [](const std::vector<int64_t>& positions) {
            return SequenceOrder::of_positions(positions);
          },
          py::arg("positions"))
      .def_property_readonly("is_natural", &SequenceOrder::is_natural)
      .def("indices", &SequenceOrder::indices, py::arg("length"))
      .def("inverse_indices", &SequenceOrder::inverse_indices, py::arg("length"));
  m.def("reorder_sequence", &reorder_sequence, py::arg("tensor"), py::arg("dim"), py::arg("order"));
  m.def("restore_sequence", &restore_sequence, py::arg("tensor"), py::arg("dim"), py::arg("order"));
}

}  // namespace

void bind_context_parallel(py::module_& m) {
  bind_order(m);
  m.def(
      "context_parallel_attention",
      [](const at::Tensor& query, const at::Tensor& key, const at::Tensor& value, bool is_causal,
         std::optional<double> scale, const std::optional<at::Tensor>& mask,
         MaskFunction mask_function, const std::string& method, const SequenceOrder& order,
         std::vector<std::vector<int64_t>> documents, const std::string& kernel) {
        return context_parallel_attention(
            query, key, value,
            {.is_causal = is_causal,
             .scale = scale,
             .mask = mask.value_or(at::Tensor()),
             .mask_function = std::move(mask_function)},
            context_options(method, order, std::move(documents), kernel));
      },
      py::arg("query"), py::arg("key"), py::arg("value"), py::arg("is_causal"), py::arg("scale"),
      py::arg("mask"), py::arg("mask_function"), py::arg("method"), py::arg("order"),
      py::arg("documents"), py::arg("kernel"));
  py::class_<ContextScope>(m, "ContextScope")
      .def(py::init([](std::string axis, const std::string& method, const SequenceOrder& order,
                       std::vector<std::vector<int64_t>> documents, const std::string& kernel) {
             return ContextScope{std::move(axis),
                                 context_options(method, order, std::move(documents), kernel)};
           }),
           py::arg("axis"), py::arg("method"), py::arg("order"), py::arg("documents"),
           py::arg("kernel"))
      .def("__enter__",
           [](py::object self) {
             auto& scope = self.cast<ContextScope&>();
             scope.open.push_back(std::make_unique<ContextParallel>(scope.axis, scope.options));
             return self;
           })
      .def("__exit__", [](ContextScope& self, const py::args&) { self.open.pop_back(); });
}

}  // namespace tessera::python
