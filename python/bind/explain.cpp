#include "tessera/rules/choice/explain.h"

#include <torch/csrc/autograd/python_variable.h>

#include "bind/bind.h"
#include "tessera/dtensor/dispatch/op/operands.h"
#include "tessera/dtensor/dtensor.h"
#include "tessera/dtensor/kernels/register.h"
#include "tessera/rules/registry/registry.h"

namespace tessera::python {
namespace {

bool is_tensor(const py::handle& object) { return THPVariable_Check(object.ptr()); }

Sharding sharding_of(const py::handle& object, const DeviceMesh& mesh) {
  if (object.is_none()) return {};
  if (py::isinstance<Sharding>(object)) return object.cast<Sharding>();
  const at::Tensor& tensor = THPVariable_Unpack(object.ptr());
  return is_dtensor(tensor) ? sharding(tensor) : dtensor::as_replicated(tensor, mesh);
}

bool is_operand(const py::handle& object) {
  return is_tensor(object) || py::isinstance<Sharding>(object);
}

rules::Arg list_arg(const py::sequence& list, const DeviceMesh& mesh) {
  if (list.size() > 0 && is_operand(list[0])) {
    std::vector<Sharding> out;
    for (const auto& item : list) out.push_back(sharding_of(item, mesh));
    return out;
  }
  if (list.size() > 0 && py::isinstance<py::bool_>(list[0])) return list.cast<std::vector<bool>>();
  if (list.size() > 0 && py::isinstance<py::float_>(list[0])) {
    const auto numbers = list.cast<std::vector<double>>();
    return std::vector<rules::Number>(numbers.begin(), numbers.end());
  }
  return list.cast<std::vector<int64_t>>();
}

rules::Arg arg_of(const py::handle& value, const DeviceMesh& mesh) {
  if (is_operand(value)) return sharding_of(value, mesh);
  if (value.is_none()) return std::monostate();
  if (py::isinstance<py::bool_>(value)) return value.cast<bool>();
  if (py::isinstance<py::int_>(value)) return value.cast<int64_t>();
  if (py::isinstance<py::float_>(value)) return value.cast<double>();
  if (py::isinstance<py::str>(value)) return value.cast<std::string>();
  if (py::isinstance<py::sequence>(value)) {
    return list_arg(py::reinterpret_borrow<py::sequence>(value), mesh);
  }
  return std::monostate();  // a dtype, a device: no rule looks at it
}

using NamedValues = std::vector<std::pair<std::string, py::object>>;

std::string explain_call(const std::string& op, const NamedValues& values, const DeviceMesh& mesh,
                         int candidates) {
  const rules::Rule* rule = rules::find_rule(op);
  std::vector<rules::NamedArg> args;
  for (const auto& [name, value] : values) args.push_back({name, arg_of(value, mesh)});
  const rules::OpCall call{op, args, mesh, {}};
  std::string text = join_text(op, " on ", mesh, "\n");
  for (const auto& operand : call.operands()) {
    if (operand.defined()) text += join_text("  ", operand, "\n");
  }
  if (dtensor::is_made_of_ops(op)) return text + "no rule: made of other ops; explain those\n";
  if (rule == nullptr) return text + "no rule: it runs on replicated inputs\n";
  return text + rules::explain(*rule, call, {.candidates = candidates}).to_text();
}

}  // namespace

void bind_explain(py::module_& m) { m.def("explain", explain_call); }

}  // namespace tessera::python
