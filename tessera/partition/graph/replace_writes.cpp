#include "tessera/partition/graph/replace_writes.h"

#include <algorithm>
#include <array>

#include "tessera/partition/graph/aliases.h"
#include "tessera/partition/graph/assignment.h"
#include "tessera/partition/graph/written_values.h"
#include "tessera/rules/registry/derive.h"

namespace tessera::partition {
namespace {

using program::Graph;
using program::Node;
using program::ValueId;

bool is_integral(DType dtype) {
  constexpr std::array kIntegral = {DType::boolean, DType::u8,  DType::i8,  DType::i16, DType::i32,
                                    DType::i64,     DType::u16, DType::u32, DType::u64};
  return std::ranges::find(kIntegral, dtype) != kIntegral.end();
}

/// Whether a functional op of these operands has the dtype of the first: the others do not promote.
bool keeps_dtype(const Graph& graph, const std::vector<ValueId>& operands) {
  const DType first = graph.value(operands[0]).tensor->dtype;
  return std::ranges::all_of(operands, [&](ValueId id) {
    const DType other = graph.value(id).tensor->dtype;
    return other == first || other == DType::boolean || (is_integral(other) && !is_integral(first));
  });
}

/// Ops that give booleans; in place they are cast to the type of the operand.
bool is_predicate(std::string_view op) {
  constexpr auto kNames = std::to_array<std::string_view>(
      {"eq", "ge", "greater", "greater_equal", "gt", "le", "less", "less_equal", "logical_and",
       "logical_not", "logical_or", "logical_xor", "lt", "ne", "not_equal"});
  op.remove_prefix(op.rfind(':') + 1);
  return std::ranges::find(kNames, op.substr(0, op.find('.'))) != kNames.end();
}

/// "torch.ops.aten.relu.default" of an in-place node, or empty if there is no form with the same
/// arguments and result.
std::string functional_target(const Graph& graph, const Node& node) {
  const auto [packet, overload] = node.op_name();
  if (!packet.starts_with("aten::") || !rules::is_in_place(packet)) return "";
  const std::string op = overload == "default" ? packet : packet + "." + overload;
  const std::string functional = rules::functional_name(op);
  if (rule_of(functional) == nullptr || is_view(functional)) return "";
  const auto operands = tensors_read(graph, node);
  const auto results = tensors_made(graph, node);
  if (operands.empty() || results.size() != 1 || !keeps_dtype(graph, operands)) return "";
  const auto& from = *graph.value(operands[0]).tensor;
  const auto& to = *graph.value(results[0]).tensor;
  if (from.dtype != to.dtype || from.sizes != to.sizes) return "";
  if (is_predicate(functional) && from.dtype != DType::boolean) return "";
  const std::string name = functional.substr(functional.rfind(':') + 1);
  const bool is_default = name.find('.') == std::string::npos;
  return "torch.ops.aten." + name + (is_default ? ".default" : "");
}

/// By value: the last node that reads it; the number of nodes if it is a result of the graph.
std::vector<size_t> last_reads(const Graph& graph) {
  std::vector<size_t> out(graph.values.size(), 0);
  for (size_t n = 0; n < graph.nodes.size(); ++n) {
    for (const ValueId id : tensors_read(graph, graph.nodes[n])) out[id.index] = n;
  }
  for (const auto& output : graph.outputs) {
    program::each_value(output, [&](ValueId id) { out[id.index] = graph.nodes.size(); });
  }
  return out;
}

}  // namespace

int replace_writes(program::ExportedProgram& program) {
  Graph& graph = program.graph;
  Aliases aliases(graph);
  auto visible_until = last_reads(graph);
  for (const auto& input : graph.inputs) {  // of the caller, or kept from run to run
    program::each_value(input, [&](ValueId id) { visible_until[id.index] = graph.nodes.size(); });
  }
  const auto is_observable = [&](size_t n, ValueId written) {
    const uint32_t set = aliases.set_of(written);
    for (uint32_t v = 0; v < visible_until.size(); ++v) {
      if (visible_until[v] > n && aliases.set_of({v}) == set) return true;
    }
    return false;
  };
  int replaced = 0;
  for (size_t n = 0; n < graph.nodes.size(); ++n) {
    Node& node = graph.nodes[n];
    std::string target = functional_target(graph, node);
    if (!target.empty() && !is_observable(n, tensors_read(graph, node)[0])) {
      node.target = std::move(target);
      ++replaced;
    }
    aliases.add(node);
  }
  read_results_of_writes(program);
  return replaced;
}

}  // namespace tessera::partition
