#include "tessera/dtensor/policy.h"

#include "bind/bind.h"

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

}  // namespace

void bind_policy(py::module_& m) {
  py::enum_<ImplicitComm>(m, "ImplicitComm")
      .value("allow", ImplicitComm::allow)
      .value("warn", ImplicitComm::warn)
      .value("forbid", ImplicitComm::forbid);
  bind_scope<CommPolicy, ImplicitComm>(m, "CommPolicy");
  bind_scope<StrictRules, bool>(m, "StrictRules");
  bind_scope<ImplicitReplication, bool>(m, "ImplicitReplication");
}

}  // namespace tessera::python
