#include "tessera/partition/rewrite/relax_views.h"

#include <algorithm>

#include "tessera/base/errors.h"
#include "tessera/partition/graph/sizes.h"

namespace tessera::partition {
namespace {

using program::Node;
using program::ValueId;

std::vector<ValueId> values_of(const Node& node) {
  std::vector<ValueId> out;
  for (const auto& input : node.inputs) {
    program::each_value(input.arg, [&](ValueId id) { out.push_back(id); });
  }
  return out;
}

/// Whether as_strided gives its input unchanged: decompositions of pooling to one element set the
/// strides of dims of size 1 by it.
bool keeps_elements(const program::Graph& global, const Node& node) {
  const auto operands = values_of(node);
  if (operands.empty() || node.outputs.size() != 1) return false;
  std::vector<ValueId> results;
  program::each_value(node.outputs[0], [&](ValueId id) { results.push_back(id); });
  if (results.size() != 1) return false;
  const auto& from = global.value(operands[0]).tensor;
  const auto& to = global.value(results[0]).tensor;
  if (!from || !to || from->sizes != to->sizes || from->storage_offset != to->storage_offset ||
      from->strides.size() != from->sizes.size() || to->strides.size() != to->sizes.size()) {
    return false;
  }
  for (size_t d = 0; d < to->sizes.size(); ++d) {
    const bool one = to->sizes[d].is_number() && to->sizes[d].number() == 1;
    if (!one && from->strides[d] != to->strides[d]) return false;
  }
  return true;
}

}  // namespace

void ViewRelaxer::relax(const program::Graph& global, const Node& before, Node& node,
                        const NodeAssignment& chosen, const Assignment& assignment) {
  const auto whole = values_of(before);
  bool moved = whole != values_of(node);
  for (const ValueId id : whole) moved = moved || moved_[id.index];
  for (const Operand& operand : chosen.operands) moved = moved || is_sharded(operand.needed);
  for (const ValueId id : chosen.results) moved = moved || is_sharded(assignment.of(id));
  if (!moved) return;
  for (const auto& output : before.outputs) {
    program::each_value(output, [&](ValueId id) { moved_[id.index] = true; });
  }
  if (node.target == "torch.ops.aten.as_strided.default" && keeps_elements(global, before)) {
    node.target = "torch.ops.aten.alias.default";
    node.inputs.resize(1);
    return;
  }
  if (node.target == "torch.ops.aten.as_strided.default") {
    throw NotSupported(join_text(
        node.name.value_or(node.target), " (as_strided) reads ",
        whole.empty() ? "a tensor" : global.value(whole[0]).name,
        " by the strides of the whole program, which a shard does not have: replace it by slices "
        "or views in the model"));
  }
  if (node.target != "torch.ops.aten.view.default" &&
      node.target != "torch.ops.aten._unsafe_view.default") {
    return;
  }
  node.target = "torch.ops.aten.reshape.default";
  const auto size = std::ranges::find(node.inputs, "size", &program::NamedArgument::name);
  if (size != node.inputs.end()) size->name = "shape";
}

}  // namespace tessera::partition
