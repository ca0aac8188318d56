#include "cli/computed_types.h"

#include <algorithm>
#include <optional>
#include <vector>

#include "tessera/partition/graph/aliases.h"
#include "tessera/program/pytree.h"

namespace tessera::cli {
namespace {

using program::ExportedProgram;
using program::Graph;
using program::Node;
using program::ValueId;

/// Bits of the fraction; larger for exact types.
int precision(DType dtype) {
  switch (dtype) {
    case DType::f64:
    case DType::c128:
      return 52;
    case DType::f32:
    case DType::c64:
      return 23;
    case DType::f16:
    case DType::c32:
      return 10;
    case DType::bf16:
      return 7;
    case DType::f8_e4m3fn:
    case DType::f8_e4m3fnuz:
      return 3;
    case DType::f8_e5m2:
    case DType::f8_e5m2fnuz:
    case DType::f8_e8m0fnu:
      return 2;
    default:
      return 64;
  }
}

bool computes(const Node& node) {
  const std::string op = node.op_name().first;
  return !op.empty() && op != "aten::_to_copy" && op != "aten::clone" && !partition::is_view(op);
}

std::optional<DType> shorter(std::optional<DType> a, std::optional<DType> b) {
  if (!a || !b) return a ? a : b;
  return precision(*b) < precision(*a) ? b : a;
}

/// By value: the shortest type of all that it is computed from.
std::vector<std::optional<DType>> shortest_types(const Graph& graph) {
  std::vector<std::optional<DType>> out(graph.values.size());
  for (const Node& node : graph.nodes) {
    std::optional<DType> type;
    for (const ValueId id : partition::tensors_read(graph, node))
      type = shorter(type, out[id.index]);
    for (const ValueId id : partition::tensors_made(graph, node)) {
      const DType own = graph.value(id).tensor->dtype;
      const bool is_float = computes(node) && precision(own) < 64;
      out[id.index] = is_float ? shorter(type, own) : type;
    }
  }
  return out;
}

}  // namespace

std::map<std::string, DType> computed_types(const ExportedProgram& program) {
  const auto types = shortest_types(program.graph);
  std::vector<std::string> names;
  if (!program.out_spec.empty())
    names = program::output_names(program::parse_pytree(program.out_spec));
  std::map<std::string, DType> out;
  size_t next = 0;
  for (const auto& spec : program.signature.outputs) {
    if (spec.kind != program::OutputKind::user_output) continue;
    const size_t i = next++;
    const auto* id = spec.arg ? std::get_if<ValueId>(&spec.arg->data) : nullptr;
    if (id != nullptr && i < names.size() && types[id->index]) out[names[i]] = *types[id->index];
  }
  return out;
}

}  // namespace tessera::cli
