#include "bind/bind.h"
#include "tessera/dtensor/register.h"
#include "tessera/rules/choose.h"
#include "tessera/rules/rule.h"

namespace tessera::python {
namespace {

py::object to_python(const Sharding& sharding) {
  return sharding.defined() ? py::cast(sharding) : py::none();
}

py::object to_python(const rules::Arg& arg) {
  if (const auto* sharding = std::get_if<Sharding>(&arg)) return to_python(*sharding);
  if (const auto* list = std::get_if<std::vector<Sharding>>(&arg)) {
    py::list out;
    for (const auto& sharding : *list) out.append(to_python(sharding));
    return out;
  }
  return std::visit(
      [](const auto& value) -> py::object {
        using T = std::decay_t<decltype(value)>;
        if constexpr (std::is_same_v<T, std::monostate>) {
          return py::none();
        } else {
          return py::cast(value);
        }
      },
      arg);
}

/// The call as a Python rule sees it: plain values, good after the call has ended.
struct CallView {
  std::string op;
  DeviceMesh mesh;
  py::list operands;
  py::dict args;
};

CallView view_of(const rules::OpCall& call) {
  CallView view{std::string(call.op), call.mesh, py::list(), py::dict()};
  for (const auto& operand : call.operands()) view.operands.append(to_python(operand));
  for (const auto& arg : call.args) view.args[py::str(arg.name)] = to_python(arg.value);
  return view;
}

/// Rows as Python gives them: [(placements of the operands, placements of the results), ...].
std::vector<rules::Row> rows_from(const std::string& op, const py::object& given,
                                  size_t operand_count) {
  std::vector<rules::Row> rows;
  for (const auto& item : given) {
    const auto pair = item.cast<std::pair<py::object, py::object>>();
    rules::Row row;
    row.operands = to_placements(pair.first).list;
    row.results = to_placements(pair.second).list;
    require(row.operands.size() == operand_count, "the rule of ", op, " places ",
            row.operands.size(), " operands, the op has ", operand_count);
    rows.push_back(std::move(row));
  }
  return rows;
}

void register_function(const std::string& op, const py::function& function, int results) {
  // Rules live as long as the process, and so do the functions behind them.
  const auto* kept = new py::function(function);
  rules::Rule rule;
  rule.op = op;
  rule.text = "Python: " + std::string(py::str(function.attr("__name__")));
  rule.result_count = results;
  rule.rows = [kept, op](const rules::OpCall& call, int axis) {
    const py::gil_scoped_acquire lock;
    const auto count = call.operands().size();
    return rows_from(op, (*kept)(view_of(call), axis), count);
  };
  rules::register_rule(std::move(rule));
}

}  // namespace

void bind_rules(py::module_& m) {
  py::class_<CallView>(m, "RuleCall", "A call of an op as its rule sees it: metadata only.")
      .def_readonly("op", &CallView::op)
      .def_readonly("mesh", &CallView::mesh)
      .def_readonly("operands", &CallView::operands)
      .def_readonly("args", &CallView::args);
  m.def("register_notation", [](const std::string& op, const std::string& notation) {
    rules::register_rule(op, notation);
  });
  m.def("register_function", register_function);
  m.def("claim", [](const std::string& op) { dtensor::claim(op); });
  m.def("ruled_ops", &rules::ruled_ops);
  m.def("rule_text", [](const std::string& op) -> std::optional<std::string> {
    const rules::Rule* rule = rules::find_rule(op);
    if (rule == nullptr) return std::nullopt;
    return rule->text;
  });
}

}  // namespace tessera::python
