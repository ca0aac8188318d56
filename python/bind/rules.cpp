#include <algorithm>

#include "bind/bind.h"
#include "tessera/dtensor/kernels/register.h"
#include "tessera/rules/choice/choose.h"
#include "tessera/rules/registry/registry.h"
#include "tessera/rules/rule.h"

namespace tessera::python {
namespace {

py::object to_python(const Sharding& sharding) {
  return sharding.defined() ? py::cast(sharding) : py::none();
}

py::object to_python(const rules::Number& number) {
  switch (number.type()) {
    case rules::NumberType::boolean:
      return py::bool_(number.to_bool());
    case rules::NumberType::integer:
      return py::int_(number.to_int());
    case rules::NumberType::floating:
      return py::float_(number.to_double());
  }
  return py::none();
}

py::object to_python(const rules::Arg& arg) {
  if (const auto* sharding = std::get_if<Sharding>(&arg)) return to_python(*sharding);
  if (const auto* list = std::get_if<std::vector<Sharding>>(&arg)) {
    py::list out;
    for (const auto& sharding : *list) out.append(to_python(sharding));
    return out;
  }
  if (const auto* list = std::get_if<std::vector<rules::Number>>(&arg)) {
    py::list out;
    for (const auto& number : *list) out.append(to_python(number));
    return out;
  }
  return std::visit(
      [](const auto& value) -> py::object {
        using T = std::decay_t<decltype(value)>;
        if constexpr (std::is_same_v<T, std::monostate>) {
          return py::none();
        } else if constexpr (std::is_same_v<T, rules::Number>) {
          return to_python(value);
        } else if constexpr (std::is_same_v<T, std::vector<rules::Number>>) {
          return py::none();  // above
        } else {
          return py::cast(value);
        }
      },
      arg);
}

/// The arguments by name. A value is made when it is asked for: a decision depends on the numbers
/// that its rule looked at, and on no others.
class ArgsView {
 public:
  explicit ArgsView(std::span<const rules::NamedArg> args) {
    for (const auto& arg : args) args_.emplace_back(arg.name, arg.value);
  }

  size_t size() const { return args_.size(); }
  bool contains(const std::string& name) const { return find(name) != nullptr; }
  py::object get(const std::string& name, const py::object& otherwise) const {
    const rules::Arg* arg = find(name);
    return arg == nullptr ? otherwise : to_python(*arg);
  }
  py::object at(const std::string& name) const {
    const rules::Arg* arg = find(name);
    if (arg == nullptr) throw py::key_error(name);
    return to_python(*arg);
  }
  py::list keys() const {
    py::list out;
    for (const auto& arg : args_) out.append(arg.first);
    return out;
  }
  py::list values() const {
    py::list out;
    for (const auto& arg : args_) out.append(to_python(arg.second));
    return out;
  }
  py::list items() const {
    py::list out;
    for (const auto& arg : args_) out.append(py::make_tuple(arg.first, to_python(arg.second)));
    return out;
  }

 private:
  const rules::Arg* find(const std::string& name) const {
    const auto found = std::ranges::find(args_, name, [](const auto& arg) { return arg.first; });
    return found == args_.end() ? nullptr : &found->second;
  }

  std::vector<std::pair<std::string, rules::Arg>> args_;
};

/// The call as a Python rule sees it, good after the call has ended.
struct CallView {
  std::string op;
  DeviceMesh mesh;
  py::list operands;
  ArgsView args;
};

CallView view_of(const rules::OpCall& call) {
  CallView view{std::string(call.op), call.mesh, py::list(), ArgsView(call.args)};
  for (const auto& operand : call.operands()) view.operands.append(to_python(operand));
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
  py::class_<ArgsView>(m, "RuleArgs", "The arguments of a call, by name: read like a dict.")
      .def("__len__", &ArgsView::size)
      .def("__contains__", &ArgsView::contains, py::arg("name"))
      .def("__getitem__", &ArgsView::at, py::arg("name"))
      .def("__iter__", [](const ArgsView& args) { return py::iter(args.keys()); })
      .def("get", &ArgsView::get, py::arg("name"), py::arg("default") = py::none())
      .def("keys", &ArgsView::keys)
      .def("values", &ArgsView::values)
      .def("items", &ArgsView::items);
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
