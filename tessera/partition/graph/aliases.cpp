#include "tessera/partition/graph/aliases.h"

#include <algorithm>
#include <span>

#include "tessera/base/iota_vector.h"
#include "tessera/rules/registry/derive.h"

namespace tessera::partition {
namespace {

using program::Graph;
using program::Node;
using program::ValueId;

bool is_one_of(std::span<const std::string_view> names, std::string_view op) {
  if (!op.starts_with("aten::")) return false;
  op.remove_prefix(6);
  return std::ranges::find(names, op.substr(0, op.find('.'))) != names.end();
}

constexpr std::string_view kViews[] = {
    "_conj",
    "_neg_view",
    "_reshape_alias",
    "_unsafe_view",
    "adjoint",
    "alias",
    "as_strided",
    "atleast_1d",
    "atleast_2d",
    "atleast_3d",
    "broadcast_to",
    "chunk",
    "conj",
    "contiguous",
    "detach",
    "diagonal",
    "dsplit",
    "expand",
    "expand_as",
    "flatten",
    "hsplit",
    "imag",
    "lift_fresh",
    "linalg_diagonal",
    "mH",
    "mT",
    "matrix_H",
    "moveaxis",
    "movedim",
    "narrow",
    "numpy_T",
    "permute",
    "positive",
    "ravel",
    "real",
    "reshape",
    "reshape_as",
    "resolve_conj",
    "resolve_neg",
    "select",
    "slice",
    "split",
    "split_with_sizes",
    "squeeze",
    "swapaxes",
    "swapdims",
    "t",
    "tensor_split",
    "to",
    "transpose",
    "type_as",
    "unbind",
    "unflatten",
    "unfold",
    "unsafe_chunk",
    "unsafe_split",
    "unsafe_split_with_sizes",
    "unsqueeze",
    "view",
    "view_as",
    "view_as_complex",
    "view_as_real",
    "vsplit",
};

/// Ops that compute, but return an operand, or a view of one, for some arguments: `dropout` outside
/// of training, an einsum that only permutes.
constexpr std::string_view kMayReturnOperand[] = {
    "alpha_dropout",         "channel_shuffle", "dropout",       "einsum",
    "feature_alpha_dropout", "feature_dropout", "pixel_shuffle", "pixel_unshuffle"};

}  // namespace

bool is_view(std::string_view op) { return is_one_of(kViews, op); }

std::vector<ValueId> tensors_read(const Graph& graph, const Node& node) {
  std::vector<ValueId> out;
  for (const auto& input : node.inputs) {
    program::each_value(input.arg, [&](ValueId id) {
      if (graph.value(id).tensor) out.push_back(id);
    });
  }
  return out;
}

std::vector<ValueId> tensors_made(const Graph& graph, const Node& node) {
  std::vector<ValueId> out;
  for (const auto& output : node.outputs) {
    program::each_value(output, [&](ValueId id) {
      if (graph.value(id).tensor) out.push_back(id);
    });
  }
  return out;
}

Aliases::Aliases(const Graph& graph)
    : graph_(graph), parent_(iota_vector<uint32_t>(graph.values.size())) {}

uint32_t Aliases::set_of(ValueId id) const {
  uint32_t v = id.index;
  while (parent_[v] != v) v = parent_[v];
  return v;
}

void Aliases::add(const Node& node) {
  const std::string op = node.op_name().first;
  const bool of_any = op.starts_with("higher_order::") || op == "aten::einsum";
  if (!of_any && !is_view(op) && !is_one_of(kMayReturnOperand, op) && !rules::is_in_place(op))
    return;
  auto operands = tensors_read(graph_, node);
  if (!of_any && operands.size() > 1) operands.resize(1);
  for (const ValueId result : tensors_made(graph_, node)) {
    for (const ValueId operand : operands) join(result, operand);
  }
}

}  // namespace tessera::partition
