#include "tessera/dtensor/dispatch.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/List.h>
#include <ATen/ops/empty.h>
#include <c10/core/InferenceMode.h>

#include <array>
#include <optional>

#include "tessera/base/errors.h"
#include "tessera/comm/call_site.h"
#include "tessera/dtensor/composite.h"
#include "tessera/dtensor/policy.h"
#include "tessera/exec/redistribute.h"

namespace tessera::dtensor {
namespace {

/// Tags keep neighbouring arguments of a key apart.
enum Tag : uint64_t { kNone = 1, kPlain, kList, kNumber, kText };

void add_scalar(DecisionKey& key, const c10::IValue& value, bool by_value) {
  // A number's type can change the result's dtype; its value rarely matters to sharding.
  key.add(kNumber + (value.isInt() ? 16 : value.isDouble() ? 32 : value.isBool() ? 48 : 64));
  if (!by_value) return;
  if (value.isInt()) key.add(static_cast<uint64_t>(value.toInt()));
  if (value.isBool()) key.add(static_cast<uint64_t>(value.toBool()));
  if (value.isDouble()) key.add(std::bit_cast<uint64_t>(value.toDouble()));
}

[[noreturn]] void refuse_plain(const OpEntry& entry, const at::Tensor& plain) {
  throw InvalidArgument(join_text(
      entry.name, ": a plain tensor of shape ", shape_text(plain.sizes()),
      " among sharded ones; distribute it (distribute_tensor, from_local) or take plain tensors as "
      "replicated with an ImplicitReplication guard"));
}

bool is_taken_as_replicated(const at::Tensor& plain) {
  return plain.numel() == 1 || ImplicitReplication::current() || plain_is_internal();
}

void add_tensor(const OpEntry& entry, DecisionKey& key, const at::Tensor& tensor) {
  if (!tensor.defined()) return key.add(kNone);
  if (const ShardedMeta* meta = sharded_meta(tensor)) {
    return key.add(static_cast<const void*>(meta->sharding().id()));
  }
  if (!is_taken_as_replicated(tensor)) refuse_plain(entry, tensor);
  key.add(kPlain + (static_cast<uint64_t>(tensor.scalar_type()) << 8) +
          (static_cast<uint64_t>(tensor.unsafeGetTensorImpl()->is_wrapped_number()) << 16));
  key.add(static_cast<uint64_t>(tensor.dim()));
  for (int64_t size : tensor.sizes()) key.add(static_cast<uint64_t>(size));
  for (int64_t stride : tensor.strides()) key.add(static_cast<uint64_t>(stride));
}

void add_arg(const OpEntry& entry, DecisionKey& key, ArgKind kind, const c10::IValue& value) {
  if (value.isNone()) return key.add(kNone);
  switch (kind) {
    case ArgKind::tensor:
      return add_tensor(entry, key, value.toTensor());
    case ArgKind::tensor_list: {
      if (value.isTensorList()) {
        const auto list = value.toTensorList();
        key.add(kList + (list.size() << 8));
        for (const at::Tensor& tensor : list) add_tensor(entry, key, tensor);
        return;
      }
      const auto list = value.toListRef();
      key.add(kList + (list.size() << 8));
      for (const auto& item : list) {
        add_tensor(entry, key, item.isNone() ? at::Tensor() : item.toTensor());
      }
      return;
    }
    case ArgKind::integer:
      if (value.isInt()) return key.add(static_cast<uint64_t>(value.toInt()));
      if (value.isBool()) return key.add(static_cast<uint64_t>(value.toBool()) + 2);
      return key.add(kNone);
    case ArgKind::integer_list: {
      if (value.isIntList()) {
        const auto list = value.toIntList();
        key.add(kList + (list.size() << 8));
        for (const int64_t i : list) key.add(static_cast<uint64_t>(i));
        return;
      }
      for (const auto& item : value.toListRef()) {
        key.add(item.isBool() ? static_cast<uint64_t>(item.toBool())
                              : static_cast<uint64_t>(item.toInt()));
      }
      return key.add(kList);
    }
    case ArgKind::scalar:
      return add_scalar(key, value, entry.values_matter);
    case ArgKind::scalar_list:
      for (const auto& item : value.toListRef()) add_scalar(key, item, entry.values_matter);
      return key.add(kList);
    case ArgKind::text:
      key.add(kText);
      return key.add(std::hash<std::string_view>()(value.toStringView()));
    case ArgKind::generator:
    case ArgKind::other:
      return;
  }
}

/// The local tensor that an operand goes into the op with.
at::Tensor local_operand(const OpEntry& entry, const Decision& decision, size_t index,
                         const at::Tensor& tensor) {
  const ShardedMeta* meta = sharded_meta(tensor);
  if (!decision.moves || index >= decision.operands.size() || !tensor.defined()) {
    return meta != nullptr ? meta->local() : tensor;
  }
  const Sharding& target = decision.operands[index];
  if (std::ranges::find(decision.write_back, index) != decision.write_back.end()) {
    return borrow_written(entry, *meta, target);
  }
  if (!target.defined() || (meta != nullptr && target == meta->sharding())) {
    return meta != nullptr ? meta->local() : tensor;
  }
  const comm::CallSite site({.op = entry.name, .implicit = true});
  at::Tensor local = meta != nullptr ? meta->local() : tensor;
  Sharding from = meta != nullptr ? meta->sharding() : as_replicated(tensor, target.mesh());
  if (from.mesh() != target.mesh()) {  // one number, which all ranks here hold
    local = exec::redistribute(local, from, from.replicated(), {.may_alias = true});
    from = as_replicated(local, target.mesh());
  }
  // Kernels read contiguous tensors as rows of memory; a slice of one may have gaps.
  if (from.is_replicated() && target.is_replicated()) return local;
  return exec::redistribute(local, from, target, {.may_alias = true}).contiguous();
}

void scale_result(const Decision& decision, size_t index, const at::Tensor& local) {
  if (index >= decision.scale.size() || decision.scale[index] == 1.0 || !local.defined()) return;
  if (decision.scale[index] == 0.0) {
    local.zero_();  // not a product: the mean of an empty part is NaN
  } else {
    local.mul_(decision.scale[index]);
  }
}

/// The sizes that only the local result tells. Strides are row-major: ranks must agree on them, and
/// an empty part tells none.
Sharding completed(const OpenResult& open, const at::Tensor& local, const DeviceMesh& mesh) {
  std::vector<int64_t> shape = open.shape;
  if (static_cast<int64_t>(shape.size()) != local.dim()) {
    // What a rule says nothing about (random states, debug output) is whole.
    const bool whole = std::ranges::all_of(
        open.placements, [](const Placement& placement) { return placement.is_replicate(); });
    ensure(whole, "a rule's sharded result has other dims than the op's");
    return as_replicated(local, mesh);
  }
  for (size_t dim = 0; dim < shape.size(); ++dim) {
    if (shape[dim] < 0) shape[dim] = local.size(static_cast<int64_t>(dim));
  }
  return Sharding(mesh, open.placements, std::move(shape),
                  {.dtype = static_cast<DType>(local.scalar_type()), .order = open.order});
}

at::Tensor wrap_result(const OpEntry& entry, const Decision& decision, size_t index,
                       at::Tensor local) {
  if (!local.defined()) return local;
  if (entry.is_view && (local.is_conj() || local.is_neg())) {
    // The bits that say how to read memory stay below: the tensor above does not carry them.
    return wrap_copy_of_view(local.resolve_conj().resolve_neg(), decision.results[index]);
  }
  if (entry.is_view && decision.moves) {
    const bool known = index < decision.results.size() && decision.results[index].defined();
    const Sharding as = known ? decision.results[index] : as_replicated(local, decision.mesh);
    return wrap_copy_of_view(std::move(local), as);
  }
  if (index < decision.results.size() && decision.results[index].defined()) {
    const Sharding& sharding = decision.results[index];
    if (std::ranges::equal(local.sizes(), sharding.local_shape()) ||
        !sharding.mesh().contains_me()) {
      if (static_cast<DType>(local.scalar_type()) == sharding.dtype()) {
        return wrap(std::move(local), sharding);
      }
      return wrap(local, sharding.with_dtype(static_cast<DType>(local.scalar_type())));
    }
    if (!sharding.is_replicated()) {
      throw InternalError(join_text(entry.name, " gave a local result of ",
                                    shape_text(local.sizes()), " where its rule says ",
                                    shape_text(sharding.local_shape()), " of ", sharding));
    }
  }
  const Sharding sharding = index < decision.open.size()
                                ? completed(decision.open[index], local, decision.mesh)
                                : as_replicated(local, decision.mesh);
  return wrap(std::move(local), sharding);
}

/// Puts local tensors in place of the sharded arguments on top of the stack.
void localise_args(const OpEntry& entry, const Decision& decision, Stack& stack, size_t base) {
  size_t operand = 0;
  for (size_t i = 0; i < entry.args.size(); ++i) {
    c10::IValue& value = stack[base + i];
    if (entry.args[i] == ArgKind::tensor) {
      if (value.isTensor()) {
        value = local_operand(entry, decision, operand, value.toTensor());
      }
      ++operand;
    } else if (entry.args[i] == ArgKind::tensor_list && !value.isNone()) {
      if (value.isTensorList()) {
        c10::List<at::Tensor> locals;
        const auto list = value.toTensorList();
        locals.reserve(list.size());
        for (const at::Tensor& tensor : list) {
          locals.push_back(local_operand(entry, decision, operand++, tensor));
        }
        value = std::move(locals);
      } else {
        c10::List<std::optional<at::Tensor>> locals;
        for (const auto& item : value.toListRef()) {
          if (item.isNone()) {
            locals.push_back(std::nullopt);
          } else {
            locals.push_back(local_operand(entry, decision, operand, item.toTensor()));
          }
          ++operand;
        }
        value = std::move(locals);
      }
    }
  }
  for (const auto& [index, value] : decision.local_args) {
    stack[base + static_cast<size_t>(index)] = value;
  }
}

void wrap_results(const OpEntry& entry, const Decision& decision, Stack& stack, size_t base,
                  std::span<c10::IValue> written) {
  size_t result = 0;
  for (size_t r = 0; r < entry.result_alias.size(); ++r) {
    c10::IValue& value = stack[base + r];
    if (value.isTensor()) scale_result(decision, result, value.toTensor());
    if (const int from = entry.result_alias[r]; from >= 0) {
      for (size_t w = 0; w < entry.written.size(); ++w) {
        if (entry.written[w] == from) value = written[w];
      }
      ++result;
    } else if (value.isTensor()) {
      value = wrap_result(entry, decision, result++, std::move(value).toTensor());
    } else if (entry.result_is_list[r]) {
      c10::List<at::Tensor> wrapped;
      for (const at::Tensor& local : value.toTensorVector()) {
        wrapped.push_back(wrap_result(entry, decision, result++, local));
      }
      value = std::move(wrapped);
    } else {
      ++result;
    }
  }
}

/// Runs another op in the place of the one called: its arguments take those on the stack's place.
void run_instead(const Replacement& replacement, Stack& stack, size_t base) {
  Stack args;
  for (const auto& [index, value] : replacement.args) {
    args.push_back(index >= 0 ? stack[base + static_cast<size_t>(index)] : value);
  }
  stack.resize(base);
  for (auto& arg : args) stack.push_back(std::move(arg));
  replacement.op.callBoxed(&stack);
}

/// A handler gives results of its own, also in the place of an out= argument.
void run_handler(const OpEntry& entry, const c10::OperatorHandle& op, const Decision& decision,
                 Stack& stack) {
  std::vector<at::Tensor> outs;
  const size_t base = stack.size() - entry.args.size();
  for (const int i : entry.written) outs.push_back(stack[base + static_cast<size_t>(i)].toTensor());
  decision.handler(entry, op, decision, stack);
  for (size_t r = 0; r < entry.result_alias.size() && !outs.empty(); ++r) {
    const auto at = std::ranges::find(entry.written, entry.result_alias[r]);
    if (at == entry.written.end()) continue;
    outs[static_cast<size_t>(at - entry.written.begin())].copy_(stack[base + r].toTensor());
  }
}

/// A view that had to be gathered has nothing to write through to.
void check_writable(const OpEntry& entry, const c10::IValue& value) {
  if (!value.isTensor()) return;
  const ShardedMeta* meta = sharded_meta(value.toTensor());
  require(meta == nullptr || !meta->is_copy_of_view(), entry.name,
          " writes to a view of a sharded tensor that had to be gathered, so the write would be "
          "lost; redistribute the tensor before taking the view, or write to a slice of it");
}

/// A view is an inference tensor if and only if its base is one, whatever the mode it is made in.
bool crosses_inference_mode(const OpEntry& entry, const Stack& stack) {
  if (!entry.is_view) return false;
  const c10::IValue& base = stack[stack.size() - entry.args.size()];
  return base.isTensor() && base.toTensor().defined() &&
         base.toTensor().is_inference() != c10::InferenceMode::is_enabled();
}

/// As the other tensor along dims of the same size, so that the two can be worked on together.
Sharding placed_beside(const Sharding& plain, const Sharding& other) {
  std::vector<Placement> placements(plain.placements().begin(), plain.placements().end());
  for (int axis = 0; axis < other.mesh().ndim() && plain.ndim() == other.ndim(); ++axis) {
    const Placement& p = other.placement(axis);
    if (!p.is_sharded()) continue;
    const auto dim = static_cast<size_t>(p.dim());
    if (plain.shape()[dim] == other.shape()[dim]) placements[static_cast<size_t>(axis)] = p;
  }
  return plain.with_placements(std::move(placements), other.order());
}

/// libtorch writes sharded values into a plain tensor that it has just made (zeros to scatter
/// into): it becomes one that lies as they do.
void adopt_internal(const OpEntry& entry, Stack& stack) {
  const size_t base = stack.size() - entry.args.size();
  for (const int i : entry.written) {
    const c10::IValue& value = stack[base + static_cast<size_t>(i)];
    if (!value.isTensor() || !value.toTensor().defined()) continue;
    const at::Tensor& tensor = value.toTensor();
    if (sharded_meta(tensor) != nullptr || !plain_is_internal()) continue;
    for (const auto& other : operands_of(entry, stack)) {
      if (other.sharded == nullptr) continue;
      const Sharding& theirs = other.sharded->sharding();
      const Sharding plain = as_replicated(tensor, theirs.mesh());
      const Sharding as = placed_beside(plain, theirs);
      // Not the tensor itself, which would then hold itself.
      become(tensor, exec::redistribute(tensor.alias(), plain, as).contiguous(), as);
      break;
    }
  }
}

constexpr size_t kMaxWritten = 8;

std::vector<at::Tensor> tensors_at(const OpEntry& entry, const Stack& stack,
                                   const std::vector<size_t>& operands) {
  std::vector<at::Tensor> out;
  if (operands.empty()) return out;
  const auto all = operands_of(entry, stack);
  for (const size_t i : operands) out.push_back(*all[i].tensor);
  return out;
}

/// On a rank outside the mesh: it has no part of anything, so nothing runs; the results are there
/// to be passed on.
void leave_out(const OpEntry& entry, const Decision& decision, Stack& stack) {
  const auto args = torch::jit::last(stack, entry.args.size()).vec();
  torch::jit::drop(stack, entry.args.size());
  size_t result = 0;
  const auto nothing = [&](size_t index) {
    require(index < decision.results.size() && decision.results[index].defined(), entry.name,
            " on mesh ", decision.mesh,
            ", called on a rank outside it: the shape of its result is "
            "known only to the mesh's ranks; call it there alone");
    const Sharding& sharding = decision.results[index];
    const auto shape = sharding.local_shape();
    const auto dtype = static_cast<at::ScalarType>(sharding.dtype());
    return wrap(at::empty(at::IntArrayRef(shape.data(), shape.size()), dtype), sharding);
  };
  for (size_t r = 0; r < entry.result_alias.size(); ++r) {
    if (entry.result_alias[r] >= 0) {
      stack.push_back(args[static_cast<size_t>(entry.result_alias[r])]);
      ++result;
    } else if (entry.result_is_list[r]) {
      c10::List<at::Tensor> list;
      while (result < decision.results.size()) list.push_back(nothing(result++));
      stack.emplace_back(std::move(list));
    } else {
      stack.emplace_back(nothing(result++));
    }
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
  return out;
}

void check_plain(const OpEntry& entry, const Stack& stack) {
  for (const auto& operand : operands_of(entry, stack)) {
    if (operand.sharded != nullptr || !operand.tensor->defined()) continue;
    if (!is_taken_as_replicated(*operand.tensor)) refuse_plain(entry, *operand.tensor);
  }
}

void dispatch(const OpEntry& entry, const c10::OperatorHandle& op, Stack& stack) {
  std::optional<c10::InferenceMode> mode_of_base;
  if (crosses_inference_mode(entry, stack)) [[unlikely]] {
    mode_of_base.emplace(!c10::InferenceMode::is_enabled());
  }
  const at::AutoDispatchBelowADInplaceOrView below_autograd;
  if (!entry.written.empty()) adopt_internal(entry, stack);
  if (entry.handler != nullptr && entry.handler(entry, op, stack)) return;
  const size_t base = stack.size() - entry.args.size();
  DecisionKey key;
  for (size_t i = 0; i < entry.args.size(); ++i) {
    add_arg(entry, key, entry.args[i], stack[base + i]);
  }
  const Decision* decision = DecisionCache::find(entry.id, key);
  if (decision == nullptr) {
    std::vector<Sharding> keep;
    for (const auto& operand : operands_of(entry, stack)) {
      if (operand.sharded != nullptr) keep.push_back(operand.sharded->sharding());
    }
    decision = DecisionCache::put(entry.id, key, decide(entry, op, stack), std::move(keep));
  }
  if (decision->by_mesh) return dispatch_by_mesh(entry, op, stack);
  check_policy(entry, *decision, stack);

  if (!decision->mesh.contains_me()) [[unlikely]] {
    return leave_out(entry, *decision, stack);
  }
  std::array<c10::IValue, kMaxWritten> written;
  for (size_t w = 0; w < entry.written.size(); ++w) {
    written[w] = stack[base + static_cast<size_t>(entry.written[w])];
    check_writable(entry, written[w]);
  }
  std::vector<at::Tensor> originals = tensors_at(entry, stack, decision->write_back);
  localise_args(entry, *decision, stack, base);
  const std::vector<at::Tensor> borrowed = tensors_at(entry, stack, decision->write_back);
  if (decision->handler != nullptr) {
    run_handler(entry, op, *decision, stack);
  } else if (decision->instead) {
    run_instead(*decision->instead, stack, base);
  } else if (entry.local_kernel != nullptr) {
    entry.local_kernel(stack);
  } else {
    op.callBoxed(&stack);
  }
  wrap_results(entry, *decision, stack, base, written);
  if (!originals.empty()) write_back(entry, *decision, originals, borrowed);
}

}  // namespace tessera::dtensor
