#include "tessera/dtensor/dispatch/op/operands.h"

#include <algorithm>

#include "tessera/base/text.h"

namespace tessera::dtensor {
namespace {

bool is_elementwise_list_op(const OpEntry& entry) {
  return !entry.args.empty() && entry.args[0] == ArgKind::tensor_list &&
         (entry.name.starts_with("aten::_foreach_") || entry.name.starts_with("aten::_fused_"));
}

void mark_hidden(const OpEntry& entry, const Stack& stack, std::vector<Operand>& operands) {
  const size_t base = stack.size() - entry.args.size();
  for (const HiddenArg& hidden : entry.hidden) {
    if (hidden.flag >= 0 && !stack[base + static_cast<size_t>(hidden.flag)].toBool()) continue;
    for (Operand& operand : operands) operand.hidden |= operand.arg == hidden.argument;
  }
}

}  // namespace

Sharding as_replicated(const at::Tensor& plain, const DeviceMesh& mesh) {
  return Sharding(mesh, std::vector<Placement>(static_cast<size_t>(mesh.ndim())),
                  {plain.sizes().begin(), plain.sizes().end()},
                  {.dtype = static_cast<DType>(plain.scalar_type()),
                   .stride = {plain.strides().begin(), plain.strides().end()}});
}

std::vector<Operand> operands_of(const OpEntry& entry, const Stack& stack) {
  static const at::Tensor kAbsent;
  std::vector<Operand> out;
  const size_t base = stack.size() - entry.args.size();
  for (size_t i = 0; i < entry.args.size(); ++i) {
    const c10::IValue& value = stack[base + i];
    const bool written =
        std::ranges::find(entry.written, static_cast<int>(i)) != entry.written.end();
    if (entry.args[i] == ArgKind::tensor) {
      const at::Tensor& tensor = value.isTensor() ? value.toTensor() : kAbsent;
      out.push_back({&tensor, sharded_meta(tensor), static_cast<int>(i), written});
    } else if (entry.args[i] == ArgKind::tensor_list && !value.isNone()) {
      for (const auto& item : value.toListRef()) {
        const at::Tensor& tensor = item.isTensor() ? item.toTensor() : kAbsent;
        out.push_back({&tensor, sharded_meta(tensor), static_cast<int>(i), written});
      }
    }
  }
  if (!entry.hidden.empty()) mark_hidden(entry, stack, out);
  return out;
}

std::string operands_text(std::span<const Operand> operands) {
  std::string out;
  for (const auto& operand : operands) {
    if (!operand.tensor->defined()) continue;
    if (!out.empty()) out += "; ";
    out += operand.sharded != nullptr ? operand.sharded->sharding().to_text()
                                      : "plain " + shape_text(operand.tensor->sizes());
  }
  return out;
}

std::vector<DeviceMesh> meshes_of_elements(const OpEntry& entry, const Stack& stack) {
  if (!is_elementwise_list_op(entry)) return {};
  const size_t base = stack.size() - entry.args.size();
  std::vector<DeviceMesh> out(stack[base].toListRef().size());
  for (size_t i = 0; i < entry.args.size(); ++i) {
    if (entry.args[i] != ArgKind::tensor_list || stack[base + i].isNone()) continue;
    const auto list = stack[base + i].toListRef();
    for (size_t e = 0; e < list.size() && e < out.size(); ++e) {
      if (out[e].defined() || !list[e].isTensor()) continue;
      const ShardedMeta* meta = sharded_meta(list[e].toTensor());
      if (meta != nullptr) out[e] = meta->sharding().mesh();
    }
  }
  return out;
}

bool has_several_meshes_in_lists(const OpEntry& entry, const Stack& stack) {
  DeviceMesh first;
  for (const auto& mesh : meshes_of_elements(entry, stack)) {
    if (!mesh.defined()) continue;
    if (!first.defined()) first = mesh;
    if (mesh != first) return true;
  }
  return false;
}

}  // namespace tessera::dtensor
