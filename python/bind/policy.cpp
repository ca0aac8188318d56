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

/// Whether no Python variable refers to the tensor's Python object. False before libtorch 2.13,
/// where it cannot be known.
template <class Slot>
bool is_held_by_cpp_alone(const at::Tensor& tensor, const Slot& slot) {
  if constexpr (requires { slot.has_unique_reference(); }) {
    return tensor.use_count() > 1 && slot.has_unique_reference();  // with other users C++ has one
  } else {
    return false;
  }
}

/// Whatever a Python program passes has a Python object. A tensor without one was made of a list on
/// the way; one whose object no variable refers to was made by a function of torch that has
/// returned, and saved for backward (the offsets of F.embedding_bag).
bool is_made_on_the_way(const at::Tensor& plain) {
  const auto& slot = *plain.unsafeGetTensorImpl()->pyobj_slot();
  return slot.load_pyobj() == nullptr || is_held_by_cpp_alone(plain, slot);
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
