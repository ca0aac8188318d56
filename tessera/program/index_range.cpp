#include "tessera/program/index_range.h"

#include <algorithm>
#include <array>
#include <set>
#include <string_view>

namespace tessera::program {
namespace {

/// Ops whose elements are those of their first operand.
bool keeps_elements(std::string_view op) {
  constexpr auto kOps = std::to_array<std::string_view>(
      {"aten::_to_copy", "aten::alias", "aten::clone", "aten::contiguous", "aten::detach",
       "aten::expand", "aten::flatten", "aten::permute", "aten::reshape", "aten::select",
       "aten::slice", "aten::squeeze", "aten::to", "aten::transpose", "aten::unsqueeze",
       "aten::view"});
  return std::ranges::find(kOps, op) != kOps.end();
}

const ValueId* tensor_of(const Argument* argument) {
  return argument == nullptr ? nullptr : std::get_if<ValueId>(&argument->data);
}

}  // namespace

std::optional<int64_t> rows_indexed_by(const Graph& graph, ValueId value) {
  std::set<ValueId> same = {value};
  std::optional<int64_t> rows;
  for (const Node& node : graph.nodes) {
    const std::string op = node.op_name().first;
    if (keeps_elements(op) && !node.inputs.empty() && !node.outputs.empty()) {
      const ValueId* from = tensor_of(&node.inputs[0].arg);
      const ValueId* to = tensor_of(&node.outputs[0]);
      if (from != nullptr && to != nullptr && same.contains(*from)) same.insert(*to);
    }
    if (op != "aten::embedding") continue;
    const ValueId* indices = tensor_of(node.find("indices"));
    const ValueId* weight = tensor_of(node.find("weight"));
    if (indices == nullptr || weight == nullptr || !same.contains(*indices)) continue;
    const auto& table = graph.value(*weight).tensor;
    if (!table || table->sizes.empty() || !table->sizes[0].hint()) continue;
    rows = std::min(rows.value_or(*table->sizes[0].hint()), *table->sizes[0].hint());
  }
  return rows;
}

}  // namespace tessera::program
