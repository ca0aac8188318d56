#include <ATen/core/List.h>

#include "tessera/base/errors.h"
#include "tessera/dtensor/dispatch/dispatch.h"

/// Optimizers and gradient clipping pass all parameters to one foreach op, whichever mesh each is
/// on. Elements are independent, so the op runs once per mesh.
namespace tessera::dtensor {
namespace {

/// The chosen elements of a list argument. Other arguments, and lists that are empty because an
/// option is off, are passed to every call.
c10::IValue pick(ArgKind kind, const c10::IValue& value, size_t count,
                 const std::vector<size_t>& chosen) {
  const bool is_list = kind == ArgKind::tensor_list || kind == ArgKind::scalar_list;
  if (!is_list || value.isNone()) return value;
  const auto list = value.toListRef();
  if (list.size() != count) return value;
  c10::impl::GenericList out(value.toList().elementType());
  for (const size_t e : chosen) out.push_back(list[e]);
  return out;
}

}  // namespace

void dispatch_by_mesh(const OpEntry& entry, const c10::OperatorHandle& op, Stack& stack) {
  const size_t base = stack.size() - entry.args.size();
  const auto meshes = meshes_of_elements(entry, stack);
  std::vector<DeviceMesh> distinct;
  for (const auto& mesh : meshes) {
    require(mesh.defined(), entry.name, ": a plain tensor in a list of tensors of several meshes");
    if (std::ranges::find(distinct, mesh) == distinct.end()) distinct.push_back(mesh);
  }
  std::vector<std::vector<at::Tensor>> results(entry.result_is_list.size(),
                                               std::vector<at::Tensor>(meshes.size()));
  for (const auto& mesh : distinct) {
    std::vector<size_t> chosen;
    for (size_t e = 0; e < meshes.size(); ++e) {
      if (meshes[e] == mesh) chosen.push_back(e);
    }
    Stack call;
    for (size_t i = 0; i < entry.args.size(); ++i) {
      call.push_back(pick(entry.args[i], stack[base + i], meshes.size(), chosen));
    }
    dispatch(entry, op, call);
    for (size_t r = 0; r < results.size(); ++r) {
      const auto part = call[r].toTensorVector();
      for (size_t k = 0; k < chosen.size(); ++k) results[r][chosen[k]] = part[k];
    }
  }
  stack.resize(base);
  for (auto& list : results) stack.emplace_back(c10::List<at::Tensor>(list));
}

}  // namespace tessera::dtensor
