#include <algorithm>
#include <array>

#include "tessera/base/errors.h"
#include "tessera/partition/graph/assignment.h"

namespace tessera::partition {
namespace {

using program::ArgKind;
using program::Argument;
using program::Graph;
using program::ValueId;
using program::ValueKind;

/// Arguments that are tensors where they are given. A file says "none" of them as of any other.
bool is_optional_tensor(std::string_view op, std::string_view name) {
  constexpr std::array<std::string_view, 9> kNames = {"bias",      "weight",       "attn_mask",
                                                      "attn_bias", "running_mean", "running_var",
                                                      "mask",      "tensor",       "padding_mask"};
  if (std::ranges::find(kNames, name) != kNames.end()) return true;
  return op == "aten::clamp.Tensor" && (name == "min" || name == "max");
}

int64_t hint_of(const Graph& graph, ValueId id) {
  const program::Value& value = graph.value(id);
  require(value.size.has_value() && value.size->hint().has_value(), "the size ", value.name,
          " is known only when the program runs, because it depends on values: such a program can "
          "be run, but not sharded; compute what has this size outside of it");
  return *value.size->hint();
}

rules::Arg sym_ints(const Graph& graph, const std::vector<program::IntOrValue>& list) {
  std::vector<int64_t> out;
  for (const auto& item : list) {
    const auto* id = std::get_if<ValueId>(&item);
    out.push_back(id != nullptr ? hint_of(graph, *id) : std::get<int64_t>(item));
  }
  return out;
}

rules::Arg number_or_none(const Graph& graph, const Argument& arg) {
  switch (arg.kind) {
    case ArgKind::integer:
      return arg.as<int64_t>();
    case ArgKind::ints:
      return arg.as<std::vector<int64_t>>();
    case ArgKind::floating:
      return rules::Number(arg.as<double>());
    case ArgKind::boolean:
      return arg.as<bool>();
    case ArgKind::bools:
      return arg.as<std::vector<bool>>();
    case ArgKind::string:
      return arg.as<std::string>();
    case ArgKind::sym_int: {
      const auto& either = arg.as<program::IntOrValue>();
      const auto* id = std::get_if<ValueId>(&either);
      return id != nullptr ? hint_of(graph, *id) : std::get<int64_t>(either);
    }
    case ArgKind::sym_ints:
      return sym_ints(graph, arg.as<std::vector<program::IntOrValue>>());
    case ArgKind::scalar_type:
      return static_cast<int64_t>(arg.as<DType>());
    default:
      return std::monostate();
  }
}

/// Appends the operands of an argument, and says what rules see of it.
class ArgReader {
 public:
  ArgReader(const Graph& graph, std::vector<std::optional<ValueId>>& operands)
      : graph_(graph), operands_(operands) {}

  template <typename ShardingOf>
  rules::Arg read(std::string_view op, const program::NamedArgument& named,
                  const ShardingOf& sharding_of) {
    const Argument& arg = named.arg;
    const auto tensor = [&](std::optional<ValueId> id) {
      operands_.push_back(id);
      return id ? sharding_of(operands_.size() - 1, *id) : Sharding();
    };
    switch (arg.kind) {
      case ArgKind::none:
        if (is_optional_tensor(op, named.name)) return tensor(std::nullopt);
        return std::monostate();
      case ArgKind::tensor:
        return tensor(arg.as<ValueId>());
      case ArgKind::optional_tensor:
        return tensor(arg.as<std::optional<ValueId>>());
      case ArgKind::tensors: {
        std::vector<Sharding> out;
        for (const ValueId id : arg.as<std::vector<ValueId>>()) out.push_back(tensor(id));
        return out;
      }
      case ArgKind::optional_tensors: {
        std::vector<Sharding> out;
        for (const auto& id : arg.as<std::vector<std::optional<ValueId>>>())
          out.push_back(tensor(id));
        return out;
      }
      default:
        return number_or_none(graph_, arg);
    }
  }

 private:
  const Graph& graph_;
  std::vector<std::optional<ValueId>>& operands_;
};

std::string name_for_rules(const program::Node& node) {
  const auto [name, overload] = node.op_name();
  if (name.empty() || overload.empty() || overload == "default") return name;
  return name + "." + overload;
}

std::vector<ValueId> tensor_results(const Graph& graph, const program::Node& node) {
  std::vector<ValueId> out;
  for (const Argument& output : node.outputs) {
    program::each_value(output, [&](ValueId id) {
      if (graph.value(id).kind == ValueKind::tensor) out.push_back(id);
    });
  }
  return out;
}

}  // namespace

NodeCall::NodeCall(const Graph& graph, const program::Node& node, const DeviceMesh& mesh,
                   std::span<const Sharding> values)
    : op_(name_for_rules(node)), results_(tensor_results(graph, node)) {
  ArgReader reader(graph, operands_);
  for (const auto& input : node.inputs) {
    args_.push_back({input.name, reader.read(op_, input, [&](size_t, ValueId id) {
                       return values[id.index];
                     })});
  }
  call_ = {op_, args_, mesh, {}};
}

NodeCall::NodeCall(const Graph& graph, size_t index, const Assignment& assignment,
                   const DeviceMesh& mesh)
    : op_(name_for_rules(graph.nodes[index])), results_(tensor_results(graph, graph.nodes[index])) {
  ArgReader reader(graph, operands_);
  const NodeAssignment& chosen = assignment.nodes[index];
  for (const auto& input : graph.nodes[index].inputs) {
    args_.push_back({input.name, reader.read(op_, input, [&](size_t i, ValueId) {
                       return seen_in(chosen.operands[i].needed, mesh);
                     })});
  }
  call_ = {op_, args_, mesh, {}};
}

std::vector<int64_t> hint_shape(const program::Value& value) {
  constexpr int64_t kMostElements = int64_t{1}
                                    << 56;  // products with bytes and ranks do not overflow
  int64_t elements = 1;
  std::vector<int64_t> out;
  for (const program::Size& size : value.tensor.value().sizes) {
    require(size.hint().has_value(), "a size of ", value.name, ", ", size.to_text(),
            ", is known only when the program runs, because it depends on values: such a program "
            "can be run, but not sharded; compute what has this size outside of it");
    out.push_back(*size.hint());
    require(!__builtin_mul_overflow(elements, std::max<int64_t>(out.back(), 1), &elements) &&
                elements < kMostElements,
            value.name, " is ", value.tensor->to_text(), ", which no memory can hold");
  }
  return out;
}

std::optional<Sharding> sharding_of_weight(const program::ExportedProgram& program,
                                           const Assignment& assignment, std::string_view name) {
  for (const auto& input : program.signature.inputs) {
    if (input.target != name || !input.arg || input.arg->kind != ArgKind::tensor) continue;
    const Sharding& sharding = assignment.of(input.arg->as<ValueId>());
    if (sharding.defined()) return sharding;
  }
  return std::nullopt;
}

}  // namespace tessera::partition
