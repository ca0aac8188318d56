#include "tessera/interp/compile.h"

#include <ATen/core/dispatch/Dispatcher.h>

#include <algorithm>
#include <numeric>

#include "tessera/base/errors.h"
#include "tessera/interp/convert_argument.h"
#include "tessera/interp/free_values.h"
#include "tessera/interp/symbolic_op.h"

namespace tessera::interp {
namespace {

using program::ArgKind;
using program::Argument;
using program::Graph;
using program::Node;
using program::Subgraph;
using program::ValueId;

constexpr std::string_view kHigherOrder = "torch.ops.higher_order.";

/// One graph and where its values are in the table.
struct Scope {
  const Graph& graph;
  std::vector<ValueIndex> slots;
};

class Compiler {
 private:
  /// Runs `make`; its errors get the file, the record and the node in front.
  template <typename Make>
  auto in_context(const std::string& where, const Make& make) const {
    const auto text = [&](const std::exception& error) {
      return join_text(document_, ": models/model.json: ", where, ": ", error.what());
    };
    try {
      return make();
    } catch (const NotSupported& error) {
      throw NotSupported(text(error));
    } catch (const InvalidArgument& error) {
      throw InvalidArgument(text(error));
    }
  }

 public:
  Compiler(const CompileOptions& options, const std::string& document)
      : options_(options), document_(document) {}

  Code compile(const Graph& graph) {
    Scope scope = open_scope(graph);
    for (const auto& input : graph.inputs) code_.inputs.push_back(slot_of(scope, input));
    nodes_of(scope, "");
    for (const auto& output : graph.outputs) {
      code_.outputs.push_back(
          in_context("the outputs", [&] { return convert_plain(output, conversion(scope)); }));
    }
    return std::move(code_);
  }

 private:
  Scope open_scope(const Graph& graph) {
    Scope scope{graph, std::vector<ValueIndex>(graph.values.size())};
    std::iota(scope.slots.begin(), scope.slots.end(), static_cast<ValueIndex>(code_.values));
    code_.values += graph.values.size();
    return scope;
  }

  ConvertOptions conversion(const Scope& scope) const {
    return {.graph = &scope.graph,
            .slots = scope.slots,
            .device = options_.device,
            .group_name = options_.group_name};
  }

  static std::optional<ValueIndex> slot_of(const Scope& scope, const Argument& arg) {
    std::optional<ValueIndex> slot;
    each_value(arg, [&](ValueId id) { slot = scope.slots[id.index]; });
    return slot;
  }

  void nodes_of(Scope& scope, const std::string& prefix) {
    for (size_t i = 0; i < scope.graph.nodes.size(); ++i) {
      const Node& node = scope.graph.nodes[i];
      const std::string where = join_text(prefix, "node ", i, " (",
                                          node.name.value_or("without a name"), "), ", node.target);
      in_context(where, [&] { add_node(scope, node, where); });
    }
  }

  void add_node(Scope& scope, const Node& node, const std::string& where) {
    if (node.target.starts_with(kHigherOrder)) return add_body(scope, node, where);
    Instruction instruction;
    instruction.node = where;
    if (const auto symbolic = find_symbolic(node.target)) {
      add_symbolic(scope, node, *symbolic, instruction);
    } else {
      add_call(scope, node, instruction);
    }
    code_.instructions.push_back(std::move(instruction));
  }

  void add_symbolic(const Scope& scope, const Node& node, SymbolicTarget target,
                    Instruction& instruction) const {
    instruction.kind = Instruction::Kind::symbolic;
    instruction.symbolic = target.op;
    require(static_cast<int>(node.inputs.size()) == target.operands, "takes ", target.operands,
            " operands, but the file passes ", node.inputs.size());
    for (const auto& input : node.inputs) {
      require(input.arg.kind != ArgKind::tensor && input.arg.kind != ArgKind::none,
              "works on numbers, but the file passes ", wire_name(input.arg.kind));
      instruction.args.push_back(convert_plain(input.arg, conversion(scope)));
    }
    require(node.outputs.size() == 1, "gives one result, but the file names ", node.outputs.size());
    instruction.results.push_back({.values = {one_value(scope, node.outputs[0])}});
  }

  static c10::OperatorHandle find_op(const Node& node) {
    const auto [name, given_overload] = node.op_name();
    require(!name.empty(), "is not an operator that this library knows");
    const std::string overload = given_overload == "default" ? "" : given_overload;
    auto& dispatcher = c10::Dispatcher::singleton();
    const auto found = dispatcher.findSchema({name, overload});
    require(found.has_value(), "there is no operator ", name, overload.empty() ? "" : ".", overload,
            " in this libtorch: load the C++ library that defines it first (LD_PRELOAD), or, if ",
            "it is defined in Python, export the model without it");
    return *found;
  }

  void add_call(const Scope& scope, const Node& node, Instruction& instruction) const {
    instruction.op = find_op(node);
    const auto& schema = instruction.op->schema();
    const auto& formals = schema.arguments();
    std::vector<const Argument*> passed(formals.size(), nullptr);
    for (size_t i = 0; i < node.inputs.size(); ++i) {
      const auto& input = node.inputs[i];
      const auto formal =
          input.name.empty() ? formals.begin() + static_cast<ptrdiff_t>(std::min(i, formals.size()))
                             : std::ranges::find(formals, input.name, &c10::Argument::name);
      require(formal != formals.end(), "the operator has no argument ", input.name, ": ",
              [&] { return c10::toString(schema); });
      passed[static_cast<size_t>(formal - formals.begin())] = &input.arg;
    }
    const ConvertOptions options = conversion(scope);
    for (size_t i = 0; i < formals.size(); ++i) {
      instruction.args.push_back(passed[i] != nullptr
                                     ? convert_argument(*passed[i], formals[i], options)
                                     : default_argument(formals[i]));
    }
    add_results(scope, node, instruction);
    const auto& name = schema.operator_name();
    if (name.name == "aten::sym_size" && name.overload_name == "int" &&
        instruction.args[1].kind == ArgSource::Kind::constant) {
      instruction.kind = Instruction::Kind::sym_size;
    }
  }

  static ValueIndex one_value(const Scope& scope, const Argument& arg) {
    const auto slot = slot_of(scope, arg);
    require(slot.has_value(), "a result is ", wire_name(arg.kind), ", which names no value");
    return *slot;
  }

  static void add_results(const Scope& scope, const Node& node, Instruction& instruction) {
    const auto& returns = instruction.op->schema().returns();
    require(node.outputs.size() == returns.size(), "gives ", returns.size(),
            " results, but the file names ", node.outputs.size());
    for (size_t i = 0; i < returns.size(); ++i) {
      const Argument& output = node.outputs[i];
      const auto& type = *returns[i].type();
      ResultTarget target;
      target.is_list = type.kind() == c10::TypeKind::ListType;
      require(target.is_list == (output.kind == ArgKind::tensors), "result ", i, " is ", type.str(),
              ", but the file names ", wire_name(output.kind));
      const bool tensor = type.kind() == c10::TypeKind::TensorType;
      require(!tensor || output.kind == ArgKind::tensor || output.kind == ArgKind::none ||
                  output.kind == ArgKind::optional_tensor,
              "result ", i, " is a Tensor, but the file names ", wire_name(output.kind));
      if (target.is_list) {
        for (const ValueId id : output.as<std::vector<ValueId>>()) {
          target.values.push_back(scope.slots[id.index]);
        }
      } else {
        target.values.push_back(slot_of(scope, output).value_or(kUnused));
      }
      instruction.results.push_back(std::move(target));
    }
  }

  /// Whether the body can be compiled in place: nothing but the grad mode, which is off anyway, or
  /// autocast being off, which it is.
  static bool is_transparent(const Node& node, std::string_view op) {
    if (op == "wrap_with_set_grad_enabled") return true;
    if (op != "wrap_with_autocast" || node.inputs.size() < 4) return false;
    const Argument& enabled = node.inputs[2].arg;  // device_type, dtype, enabled, cache_enabled
    return enabled.kind == ArgKind::boolean && !enabled.as<bool>();
  }

  void add_body(Scope& scope, const Node& node, const std::string& where) {
    const std::string_view op = std::string_view(node.target).substr(kHigherOrder.size());
    const auto body_arg = std::ranges::find_if(
        node.inputs, [](const auto& input) { return input.arg.kind == ArgKind::graph; });
    if (!is_transparent(node, op) || body_arg == node.inputs.end()) {
      throw NotSupported(join_text(
          op, " is a higher-order op, which this library does not run; ",
          op.starts_with("wrap_with_")
              ? "run_decompositions({}) of the exported program replaces it by the ops inside"
              : "export the model without it (for torch.cond, choose the branch before the "
                "export)"));
    }
    const auto& body = body_arg->arg.as<Subgraph>();
    Scope inner = open_scope(*body.graph);
    auto operand = body_arg + 1;
    require(node.inputs.end() - operand == static_cast<ptrdiff_t>(body.graph->inputs.size()),
            "passes ", node.inputs.end() - operand, " operands to a body of ",
            body.graph->inputs.size(), " inputs");
    for (const auto& input : body.graph->inputs) {
      const auto outer = slot_of(scope, (operand++)->arg);
      require(outer.has_value(), "passes a constant to its body");
      each_value(input, [&](ValueId id) { inner.slots[id.index] = *outer; });
    }
    nodes_of(inner, join_text(where, ", ", body.name, ": "));
    std::vector<ValueIndex> results;
    for (const auto& output : body.graph->outputs) {
      results.push_back(one_value(inner, output));
    }
    size_t next = 0;
    for (const auto& output : node.outputs) {
      each_value(output, [&](ValueId id) {
        require(next < results.size(), "names more results than its body has");
        scope.slots[id.index] = results[next++];
      });
    }
  }

  const CompileOptions& options_;
  const std::string& document_;
  Code code_;
};

}  // namespace

Code compile(const program::ExportedProgram& program, const CompileOptions& options,
             const std::string& document) {
  Code code = Compiler(options, document).compile(program.graph);
  mark_last_uses(code);
  return code;
}

}  // namespace tessera::interp
