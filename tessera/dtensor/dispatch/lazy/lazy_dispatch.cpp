#include "tessera/dtensor/dispatch/lazy/lazy_dispatch.h"

#include <c10/core/GradMode.h>
#include <torch/csrc/autograd/graph_task.h>

#include <algorithm>
#include <optional>
#include <utility>

#include "tessera/base/errors.h"
#include "tessera/dtensor/dispatch/lazy/lazy_dtypes.h"
#include "tessera/dtensor/dispatch/lazy/lazy_recipes.h"
#include "tessera/dtensor/dispatch/lazy/unreduced_leaf.h"
#include "tessera/dtensor/dispatch/op/operands.h"

namespace tessera::dtensor {

namespace {

thread_local bool outside_backward = false;

/// Calls visit(tensor, argument index) for each defined tensor among the arguments.
template <class Visit>
void for_each_tensor(const OpEntry& entry, const Stack& stack, const Visit& visit) {
  const size_t base = stack.size() - entry.args.size();
  for (size_t i = 0; i < entry.args.size(); ++i) {
    const c10::IValue& value = stack[base + i];
    if (entry.args[i] == ArgKind::tensor) {
      if (value.isTensor() && value.toTensor().defined()) visit(value.toTensor(), i);
    } else if (entry.args[i] == ArgKind::tensor_list && value.isList()) {
      for (const c10::IValue& item : value.toListRef()) {
        if (item.isTensor() && item.toTensor().defined()) visit(item.toTensor(), i);
      }
    }
  }
}

/// Replaces each lazy tensor among the arguments by change(tensor, lazy, argument index).
template <class Change>
void replace_lazy(const OpEntry& entry, Stack& stack, const Change& change) {
  const size_t base = stack.size() - entry.args.size();
  for (size_t i = 0; i < entry.args.size(); ++i) {
    c10::IValue& value = stack[base + i];
    if (entry.args[i] == ArgKind::tensor) {
      if (!value.isTensor()) continue;
      if (LazyLocal* lazy = lazy_local(value.toTensor())) {
        value = change(value.toTensor(), *lazy, i);
      }
    } else if (entry.args[i] == ArgKind::tensor_list && value.isTensorList()) {
      c10::List<at::Tensor> list;
      for (const at::Tensor& tensor : value.toTensorVector()) {
        LazyLocal* lazy = lazy_local(tensor);
        list.push_back(lazy != nullptr ? change(tensor, *lazy, i) : tensor);
      }
      value = std::move(list);
    } else if (entry.args[i] == ArgKind::tensor_list && value.isList()) {
      c10::List<std::optional<at::Tensor>> list;
      for (const c10::IValue& item : value.toListRef()) {
        LazyLocal* lazy = item.isTensor() ? lazy_local(item.toTensor()) : nullptr;
        list.push_back(lazy != nullptr   ? std::optional(change(item.toTensor(), *lazy, i))
                       : item.isTensor() ? std::optional(item.toTensor())
                                         : std::nullopt);
      }
      value = std::move(list);
    }
  }
}

/// What an op's arguments include, besides lazy tensors.
struct OperandMix {
  bool plain = false;       ///< a plain tensor with at least one dim
  bool other_mesh = false;  ///< sharded over other axes: activations of tensor parallelism
  bool own_mesh = false;    ///< sharded like parameters: gradients, optimizer state
  bool lazy_view = false;
  bool switched = false;  ///< one that is read reports another dtype than its shards have
  bool computes = false;  ///< ... and a module computes with it
  bool written = false;   ///< a lazy tensor is written to
  bool records = false;   ///< in grad mode with a tensor that requires grad
  bool replays = false;   ///< in a backward, or in forward of a module, which may be recomputed
};

bool is_written(const OpEntry& entry, size_t arg) {
  return std::ranges::find(entry.written, static_cast<int>(arg)) != entry.written.end();
}

bool reports_other_dtype(const at::Tensor& tensor, const ShardedMeta& meta) {
  return meta.local().defined() && meta.local().scalar_type() != tensor.scalar_type();
}

const DeviceMesh* mesh_if_lazy(const c10::IValue& value) {
  const ShardedMeta* meta = value.isTensor() ? sharded_meta(value.toTensor()) : nullptr;
  return meta != nullptr && meta->lazy() != nullptr ? &meta->sharding().mesh() : nullptr;
}

/// Of the last one, so that the lists of an optimizer are not searched.
const DeviceMesh* mesh_of_lazy(const OpEntry& entry, const Stack& stack) {
  const size_t base = stack.size() - entry.args.size();
  for (size_t i = entry.args.size(); i-- > 0;) {
    const c10::IValue& value = stack[base + i];
    if (entry.args[i] == ArgKind::tensor) {
      if (const DeviceMesh* mesh = mesh_if_lazy(value)) return mesh;
    } else if (entry.args[i] == ArgKind::tensor_list && value.isList()) {
      const auto list = value.toListRef();
      for (size_t item = list.size(); item-- > 0;) {
        if (const DeviceMesh* mesh = mesh_if_lazy(list[item])) return mesh;
      }
    }
  }
  return nullptr;
}

OperandMix operand_mix_of(const OpEntry& entry, const Stack& stack, const DeviceMesh& mesh) {
  OperandMix out;
  const bool may_record = c10::GradMode::is_enabled();
  const bool backward = runs_backward();
  for_each_tensor(entry, stack, [&](const at::Tensor& tensor, size_t arg) {
    out.records = out.records || (may_record && tensor.requires_grad());
    const ShardedMeta* meta = sharded_meta(tensor);
    if (meta == nullptr) {
      out.plain = out.plain || tensor.dim() > 0;
    } else if (meta->lazy() == nullptr) {
      const bool own = meta->sharding().mesh() == mesh;
      out.own_mesh = out.own_mesh || own;
      out.other_mesh = out.other_mesh || (!own && tensor.dim() > 0);
    } else {
      out.lazy_view = out.lazy_view || is_lazy_view(*meta);
      const bool written = is_written(entry, arg);
      out.written = out.written || written;
      out.replays = out.replays || backward || meta->lazy()->in_forward();
      const bool switched = !written && reports_other_dtype(tensor, *meta);
      out.switched = out.switched || switched;
      out.computes = out.computes || (switched && meta->lazy()->root().computes());
    }
  });
  return out;
}

bool computes(const OperandMix& mix) {
  if (mix.written) return false;
  if (mix.plain || mix.other_mesh) return true;
  return !mix.own_mesh && (mix.records || mix.replays);
}

/// zeros_like(p), full_like(p, ...): only the metadata is used, and there is no derivative.
/// Optimizers create their state this way, some of them while autograd records. Not while p reports
/// another dtype for a computing module: the result has that dtype.
bool uses_metadata_only(const OpEntry& entry, const OperandMix& mix) {
  const std::string_view name(entry.name);
  return !mix.plain && !mix.other_mesh && !mix.computes &&
         name.substr(0, name.find('.')).ends_with("_like");
}

/// Whether there are floating-point tensors of two dtypes, which many ops reject.
bool mixes_dtypes(const OpEntry& entry, const Stack& stack) {
  std::optional<at::ScalarType> first;
  bool mixes = false;
  for_each_tensor(entry, stack, [&](const at::Tensor& tensor, size_t) {
    if (!tensor.is_floating_point()) return;
    mixes = mixes || (first && *first != tensor.scalar_type());
    first = tensor.scalar_type();
  });
  return mixes;
}

void run_on_produced(const OpEntry& entry, const c10::OperatorHandle& op, Stack& stack) {
  c10::SmallVector<std::shared_ptr<LazyLocal>, 4> used;
  bool mixed = false;
  const auto notify = [&used] {
    for (const auto& lazy : used) lazy->release();
  };
  try {
    replace_lazy(entry, stack, [&used](const at::Tensor& tensor, LazyLocal& lazy, size_t) {
      used.push_back(sharded_meta(tensor)->lazy());
      return lazy.unsharded();
    });
    mixed = mixes_dtypes(entry, stack);
    op.callBoxed(&stack);
  } catch (c10::Error& error) {
    if (mixed) explain_dtypes(error, used);
    notify();
    throw;
  } catch (...) {
    notify();
    throw;
  }
  notify();
}

/// An op whose tensors are all lazy and none is written to.
void compute_on_shards(const OpEntry& entry, const c10::OperatorHandle& op, Stack& stack) {
  const size_t base = stack.size() - entry.args.size();
  std::shared_ptr<LazyLocal> of;
  FromUnreducedLeaf operands;
  for_each_tensor(entry, stack, [&](const at::Tensor& tensor, size_t) {
    if (lazy_local(tensor) == nullptr) return;
    of = sharded_meta(tensor)->lazy();
    operands.add_operand(tensor);
  });
  replace_lazy(entry, stack, [](const at::Tensor& tensor, LazyLocal& lazy, size_t) {
    return shards_to_read(tensor, lazy);
  });
  op.callBoxed(&stack);
  for (size_t r = 0; r < entry.result_alias.size(); ++r) {
    c10::IValue& value = stack[base + r];
    if (value.isTensor()) {
      value = as_lazy_result(value.toTensor(), of, operands);
    } else if (value.isTensorList()) {
      c10::List<at::Tensor> list;
      for (const at::Tensor& item : value.toTensorVector())
        list.push_back(as_lazy_result(item, of, operands));
      value = std::move(list);
    }
  }
}

/// Views of lazy tensors take part as views of the shards, so writes through them reach the shards.
/// Tensors that are only read take part in the dtype that they report.
void run_on_shards(const OpEntry& entry, const c10::OperatorHandle& op, Stack& stack) {
  const size_t base = stack.size() - entry.args.size();
  std::vector<c10::IValue> written;
  for (const int i : entry.written) written.push_back(stack[base + static_cast<size_t>(i)]);
  replace_lazy(entry, stack, [&entry](const at::Tensor& tensor, LazyLocal& lazy, size_t arg) {
    const bool view = is_lazy_view(*sharded_meta(tensor));
    if (!is_written(entry, arg)) return shards_to_read(tensor, lazy);
    return view ? lazy.shards() : tensor;
  });
  op.callBoxed(&stack);
  for (size_t r = 0; r < entry.result_alias.size(); ++r) {
    const auto at = std::ranges::find(entry.written, entry.result_alias[r]);
    if (at == entry.written.end()) continue;
    stack[base + r] = written[static_cast<size_t>(at - entry.written.begin())];
  }
}

void refuse_gradients_of_unreduced_leaves(const OpEntry& entry, const Stack& stack) {
  for_each_tensor(entry, stack, [&entry](const at::Tensor& tensor, size_t) {
    if (lazy_local(tensor) != nullptr) refuse_gradient_of_unreduced_leaf(tensor, entry.name);
  });
}

/// Ranks look up different rows; a row that only one rank renormalizes would differ from the other
/// ranks' copies.
void refuse_renorm(const OpEntry& entry) {
  if (entry.name != "aten::embedding_renorm_") return;
  throw NotSupported(
      "embedding with max_norm of a parameter that is gathered on demand (fully_shard): each rank "
      "would renormalise the rows that it looks up and the others would not; renormalise the "
      "weight "
      "itself between steps (torch.renorm), or leave it out of the group");
}

void tell_of_writes(const OpEntry& entry, const Stack& stack) {
  for_each_tensor(entry, stack, [&](const at::Tensor& tensor, size_t arg) {
    if (!is_written(entry, arg)) return;
    if (LazyLocal* lazy = lazy_local(tensor)) lazy->shards_change();
  });
}

}  // namespace

OutsideBackward::OutsideBackward() : before_(std::exchange(outside_backward, true)) {}
OutsideBackward::~OutsideBackward() { outside_backward = before_; }

bool runs_backward() {
  constexpr int kNoBackward = -1;
  return torch::autograd::get_current_graph_task_id() != kNoBackward && !outside_backward;
}

bool takes_lazy(const OpEntry& entry, const Stack& stack) {
  return LazyLocal::any() && mesh_of_lazy(entry, stack) != nullptr;
}

bool dispatch_lazy(const OpEntry& entry, const c10::OperatorHandle& op, Stack& stack) {
  const DeviceMesh* mesh = mesh_of_lazy(entry, stack);
  if (mesh == nullptr) return false;
  // Queries the tensor object, not its value.
  if (entry.name == "aten::_has_compatible_shallow_copy_type") return false;
  if (entry.is_view && entry.args[0] == ArgKind::tensor &&
      lazy_local(stack[stack.size() - entry.args.size()].toTensor()) != nullptr) {
    view_lazily(entry, op, stack);
    return true;
  }
  if (is_cast(entry, stack)) {
    cast_lazily(entry, op, stack);
    return true;
  }
  const OperandMix mix = operand_mix_of(entry, stack, *mesh);
  if (computes(mix) && !uses_metadata_only(entry, mix)) {
    refuse_gradients_of_unreduced_leaves(entry, stack);
    run_on_produced(entry, op, stack);
    return true;
  }
  if (mix.written) {
    refuse_renorm(entry);
    tell_of_writes(entry, stack);
  } else if (!mix.own_mesh && entry.written.empty()) {
    compute_on_shards(entry, op, stack);
    return true;
  }
  if (!mix.lazy_view && !mix.switched) return false;
  run_on_shards(entry, op, stack);
  return true;
}

}  // namespace tessera::dtensor
