#include "tessera/partition/relax_views.h"

#include <algorithm>

#include "tessera/base/errors.h"
#include "tessera/partition/sizes.h"

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

}  // namespace

void ViewRelaxer::relax(const program::Graph& global, const Node& before, Node& node,
                        const NodeAssignment& chosen, const Assignment& assignment) {
  const auto whole = values_of(before);
  bool moved = whole != values_of(node);
  for (const ValueId id : whole) moved = moved || moved_[id.index];
  for (const Operand& operand : chosen.operands) moved = moved || is_cut(operand.needed);
  for (const ValueId id : chosen.results) moved = moved || is_cut(assignment.of(id));
  if (!moved) return;
  for (const auto& output : before.outputs) {
    program::each_value(output, [&](ValueId id) { moved_[id.index] = true; });
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
