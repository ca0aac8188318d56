#include "tessera/dtensor/policy.h"

#include "bind/bind.h"
#include "tessera/dtensor/dispatch/composite.h"
#include "tessera/dtensor/dispatch/placed_gradient.h"

namespace tessera::python {
namespace {

/// A C++ scope guard as a context manager: entered and left on one thread, any number of times.
template <typename Guard, typename Value>
struct Scope {
  Value value;
  std::vector<std::unique_ptr<Guard>> open{};
};

template <typename Guard, typename Value>
void bind_scope(py::module_& m, const char* name) {
  using This = Scope<Guard, Value>;
  py::class_<This>(m, name)
      .def(py::init([](Value value) { return This{value}; }))
      .def("__enter__",
           [](py::object self) {
             auto& scope = self.cast<This&>();
             scope.open.push_back(std::make_unique<Guard>(scope.value));
             return self;
           })
      .def("__exit__", [](This& self, const py::args&) { self.open.pop_back(); })
      .def_static("current", &Guard::current);
}

/// A Python function that makes tensors of its own; they count as replicated inside it.
struct CompositeScope {
  std::vector<std::unique_ptr<dtensor::InsideComposite>> open{};
};

/// Whatever a Python program passes has a Python object; an index that it does not hold itself was
/// made of a list on the way.
bool is_made_on_the_way(const at::Tensor& plain) {
  return plain.unsafeGetTensorImpl()->pyobj_slot()->load_pyobj() == nullptr;
}

}  // namespace

void bind_policy(py::module_& m) {
  dtensor::set_literal_test(is_made_on_the_way);
  py::class_<CompositeScope>(m, "CompositeScope")
      .def(py::init<>())
      .def("__enter__",
           [](CompositeScope& self) {
             self.open.push_back(std::make_unique<dtensor::InsideComposite>());
           })
      .def("__exit__", [](CompositeScope& self, const py::args&) { self.open.pop_back(); });
  m.def("with_placed_gradient", &dtensor::with_placed_gradient, py::arg("tensor"));
  py::enum_<ImplicitComm>(m, "ImplicitComm")
      .value("allow", ImplicitComm::allow)
      .value("warn", ImplicitComm::warn)
      .value("forbid", ImplicitComm::forbid);
  bind_scope<CommPolicy, ImplicitComm>(m, "CommPolicy");
  bind_scope<StrictRules, bool>(m, "StrictRules");
  bind_scope<ImplicitReplication, bool>(m, "ImplicitReplication");
}

}  // namespace tessera::python
