#include "tessera/program/verify.h"

#include <algorithm>
#include <map>
#include <set>

#include "tessera/base/errors.h"

namespace tessera::program {
namespace {

using Problems = std::vector<std::string>;

template <typename... Parts>
void add(Problems& problems, const Parts&... parts) {
  problems.push_back(join_text(parts...));
}

std::string node_text(const Node& node, size_t index) {
  return join_text("node ", index, " (", node.name.value_or(node.target), ")");
}

/// The kind of value that an argument of this kind references, if any.
std::optional<ValueKind> value_kind_of(ArgKind kind) {
  switch (kind) {
    case ArgKind::tensor:
    case ArgKind::tensors:
    case ArgKind::optional_tensor:
    case ArgKind::optional_tensors:
    case ArgKind::nested_tensors:
      return ValueKind::tensor;
    case ArgKind::sym_int:
    case ArgKind::sym_ints:
      return ValueKind::sym_int;
    case ArgKind::sym_float:
    case ArgKind::sym_floats:
      return ValueKind::sym_float;
    case ArgKind::sym_bool:
    case ArgKind::sym_bools:
      return ValueKind::sym_bool;
    case ArgKind::custom_obj:
      return ValueKind::custom_obj;
    default:
      return std::nullopt;
  }
}

void check_kinds(const Graph& graph, const Argument& arg, const std::string& where,
                 Problems& problems) {
  if (arg.kind == ArgKind::string_to_argument) {
    using Members = std::vector<std::pair<std::string, Argument>>;
    for (const auto& [name, member] : arg.as<Members>()) {
      check_kinds(graph, member, join_text(where, ", ", name), problems);
    }
    return;
  }
  const auto kind = value_kind_of(arg.kind);
  each_value(arg, [&](ValueId id) {
    if (kind != graph.value(id).kind) {
      add(problems, where, ": ", wire_name(arg.kind), " refers to ", graph.value(id).name,
          ", a value of another kind");
    }
  });
}

/// Checks that definitions precede uses, in one graph and the bodies of its higher-order ops.
void check_order(const Graph& graph, const std::string& prefix, Problems& problems) {
  std::vector<bool> defined(graph.values.size(), false);
  const auto define = [&](const Argument& arg, const std::string& where) {
    check_kinds(graph, arg, where, problems);
    each_value(arg, [&](ValueId id) {
      if (defined[id.index]) add(problems, where, " defines ", graph.value(id).name, " again");
      defined[id.index] = true;
    });
  };
  const auto use = [&](const Argument& arg, const std::string& where) {
    check_kinds(graph, arg, where, problems);
    each_value(arg, [&](ValueId id) {
      if (!defined[id.index]) {
        add(problems, where, " uses ", graph.value(id).name, " before it is defined");
      }
    });
  };
  for (const auto& input : graph.inputs) define(input, prefix + "the inputs");
  for (size_t i = 0; i < graph.nodes.size(); ++i) {
    const Node& node = graph.nodes[i];
    const std::string where = prefix + node_text(node, i);
    std::set<std::string_view> names;
    for (const auto& input : node.inputs) {
      use(input.arg, where);
      if (!input.name.empty() && !names.insert(input.name).second) {
        add(problems, where, " passes ", input.name, " twice");
      }
      if (const auto* body = std::get_if<Subgraph>(&input.arg.data)) {
        check_order(*body->graph, join_text(where, ", ", body->name, ": "), problems);
      }
    }
    for (const auto& output : node.outputs) define(output, where);
    if (node.target.empty()) add(problems, where, " has no target");
  }
  for (const auto& output : graph.outputs) use(output, prefix + "the outputs");
}

bool same_argument(const Argument& a, const Argument& b) {
  if (a.kind != b.kind) return false;
  std::vector<ValueId> of_a;
  std::vector<ValueId> of_b;
  each_value(a, [&](ValueId id) { of_a.push_back(id); });
  each_value(b, [&](ValueId id) { of_b.push_back(id); });
  return of_a == of_b;
}

/// Checks that a payload has the dtype and shape of the input that it is passed to.
void check_payload(const ExportedProgram& program, const InputSpec& spec, Problems& problems) {
  const Payload* payload = program.find_payload(spec.target);
  if (payload == nullptr) {
    add(problems, spec.target, " is an input of the graph but has no bytes in the archive");
    return;
  }
  if (spec.kind == InputKind::custom_obj || payload->use_pickle) return;
  if (payload->is_param != (spec.kind == InputKind::parameter)) {
    add(problems, spec.target,
        payload->is_param ? " is stored as a parameter and used as none"
                          : " is used as a parameter and stored as none");
  }
  const auto* id = std::get_if<ValueId>(&spec.arg->data);
  const auto& expected = id != nullptr ? program.graph.value(*id).tensor : std::nullopt;
  if (!payload->meta || !expected) {
    add(problems, spec.target, " is not described as a tensor");
  } else if (payload->meta->dtype != expected->dtype || payload->meta->sizes != expected->sizes) {
    add(problems, spec.target, " is ", *payload->meta, " in the archive and ", *expected,
        " in the graph");
  }
}

void check_signature(const ExportedProgram& program, Problems& problems) {
  const auto& [inputs, outputs] = program.signature;
  const Graph& graph = program.graph;
  if (inputs.size() != graph.inputs.size()) {
    add(problems, "the signature has ", inputs.size(), " inputs, the graph ", graph.inputs.size());
    return;
  }
  if (outputs.size() != graph.outputs.size()) {
    add(problems, "the signature has ", outputs.size(), " outputs, the graph ",
        graph.outputs.size());
    return;
  }
  std::set<std::string> buffers;
  std::set<std::string> parameters;
  std::set<std::string> users;
  for (size_t i = 0; i < inputs.size(); ++i) {
    const InputSpec& spec = inputs[i];
    if (!spec.arg) continue;
    if (!same_argument(*spec.arg, graph.inputs[i])) {
      add(problems, "input ", i, " of the signature is another value than that of the graph");
    }
    if (spec.kind == InputKind::user_input) {
      each_value(*spec.arg, [&](ValueId id) { users.insert(graph.value(id).name); });
    } else {
      check_payload(program, spec, problems);
      (spec.kind == InputKind::parameter ? parameters : buffers).insert(spec.target);
    }
  }
  for (size_t i = 0; i < outputs.size(); ++i) {
    const OutputSpec& spec = outputs[i];
    if (!spec.arg) continue;
    if (!same_argument(*spec.arg, graph.outputs[i])) {
      add(problems, "output ", i, " of the signature is another value than that of the graph");
    }
    const bool of_parameter = spec.kind == OutputKind::parameter_mutation ||
                              spec.kind == OutputKind::gradient_to_parameter;
    const bool of_user = spec.kind == OutputKind::user_input_mutation ||
                         spec.kind == OutputKind::gradient_to_user_input;
    const bool of_buffer = spec.kind == OutputKind::buffer_mutation;
    const auto& names = of_parameter ? parameters : of_user ? users : buffers;
    if ((of_parameter || of_user || of_buffer) && !names.contains(spec.target)) {
      add(problems, "output ", i, " writes to ", spec.target, ", which is no input of the graph");
    }
  }
}

/// Symbols bound by inputs and nodes.
std::set<std::string> bound_symbols(const Graph& graph) {
  std::set<std::string> out;
  const auto bind = [&](const Size& size) {
    if (!size.expression()) return;
    if (const auto symbol = size.expression()->as_symbol()) out.insert(*symbol);
  };
  const auto bind_all = [&](const Argument& arg) {
    each_value(arg, [&](ValueId id) {
      const Value& value = graph.value(id);
      if (value.size) bind(*value.size);
      if (!value.tensor) return;
      for (const auto& size : value.tensor->sizes) bind(size);
    });
  };
  for (const auto& input : graph.inputs) bind_all(input);
  for (const auto& node : graph.nodes) {
    for (const auto& output : node.outputs) bind_all(output);
  }
  return out;
}

void check_symbols(const ExportedProgram& program, Problems& problems) {
  const std::set<std::string> bound = bound_symbols(program.graph);
  const std::map<std::string, Range> ranges(program.range_constraints.begin(),
                                            program.range_constraints.end());
  for (const auto& [symbol, range] : ranges) {
    if (range.min && range.max && *range.min > *range.max) {
      add(problems, "symbol ", symbol, " has an empty range, ", *range.min, " to ", *range.max);
    }
  }
  std::set<std::string> said;
  for (const auto& value : program.graph.values) {
    if (!value.tensor) continue;
    for (const auto& size : value.tensor->sizes) {
      if (size.hint() && *size.hint() < 0) {
        add(problems, value.name, " has a negative size: ", *value.tensor);
      }
      if (!size.expression()) continue;
      for (const auto& symbol : size.expression()->symbols()) {
        if (bound.contains(symbol) || !said.insert(symbol).second) continue;
        add(problems, value.name, " is ", *value.tensor, ": no input or node gives ", symbol);
      }
      const auto symbol = size.expression()->as_symbol();
      const auto range = symbol ? ranges.find(*symbol) : ranges.end();
      if (range == ranges.end() || !size.hint()) continue;
      const auto& [low, high] = range->second;
      if ((low && *size.hint() < *low) || (high && *size.hint() > *high)) {
        add(problems, value.name, ": ", *symbol, " was ", *size.hint(),
            " at export, outside of its range");
      }
    }
  }
}

}  // namespace

std::vector<std::string> problems_of(const ExportedProgram& program) {
  Problems problems;
  check_order(program.graph, "", problems);
  check_signature(program, problems);
  check_symbols(program, problems);
  return problems;
}

void verify(const ExportedProgram& program, const std::string& document) {
  constexpr size_t kShown = 5;
  const auto problems = problems_of(program);
  if (problems.empty()) return;
  std::string text = join_text(document, " is not a sound program:");
  for (size_t i = 0; i < std::min(problems.size(), kShown); ++i) text += "\n  " + problems[i];
  if (problems.size() > kShown) text += join_text("\n  and ", problems.size() - kShown, " more");
  throw InvalidArgument(text);
}

}  // namespace tessera::program
