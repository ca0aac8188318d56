#include "tessera/dtensor/dispatch/call_key.h"

#include <ATen/core/List.h>

#include "tessera/base/errors.h"
#include "tessera/dtensor/dispatch/composite.h"
#include "tessera/dtensor/dispatch/lazy/lazy_dispatch.h"
#include "tessera/dtensor/policy.h"

namespace tessera::dtensor {
namespace {

void add_scalar(DecisionKey& key, const c10::IValue& value) {
  if (value.isInt()) return words::add_number(key, value.toInt());
  if (value.isBool()) return words::add_number(key, value.toBool());
  if (value.isDouble()) return words::add_number(key, value.toDouble());
  if (value.isComplexDouble()) return words::add_complex(key, value.toComplexDouble());
  words::add_other_number(key);
}

/// A list of texts; of the other kinds that have no words (devices), nothing.
void add_texts(DecisionKey& key, const c10::IValue& value) {
  if (!value.isList()) return;
  const auto list = value.toListRef();
  words::add_list(key, list.size());
  for (const c10::IValue& item : list) {
    if (item.isString()) words::add_text(key, item.toStringView());
  }
}

/// Begins as PyTorch's error does, which users search for.
[[noreturn]] void refuse_plain(const OpEntry& entry, const at::Tensor& plain) {
  throw InvalidArgument(join_text(
      entry.name,
      ": got mixed torch.Tensor and DTensor, need to convert all torch.Tensor to DTensor before "
      "calling distributed operators: a plain tensor of shape ",
      shape_text(plain.sizes()),
      " among sharded ones; distribute it (distribute_tensor, from_local) or take plain tensors as "
      "replicated with an ImplicitReplication guard (in Python: with implicit_replication())"));
}

/// One element, or one that is expanded. Forward-mode derivatives make expanded zeros for tensors
/// without a tangent.
bool is_one_number(const at::Tensor& plain) {
  const auto sizes = plain.sizes();
  if (plain.numel() == 0 || plain.layout() != at::kStrided) return false;
  for (size_t dim = 0; dim < sizes.size(); ++dim) {
    if (sizes[dim] != 1 && plain.strides()[dim] != 0) return false;
  }
  return true;
}

void add_arg(const OpEntry& entry, DecisionKey& key, ArgKind kind, const c10::IValue& value) {
  using namespace words;
  if (value.isNone()) return add_none(key);
  switch (kind) {
    case ArgKind::tensor:
      return add_tensor(entry, key, value.toTensor());
    case ArgKind::tensor_list: {
      const auto list = value.toListRef();
      add_list(key, list.size());
      for (const c10::IValue& item : list) {
        if (item.isNone()) {
          add_tensor(entry, key, at::Tensor());
        } else {
          add_tensor(entry, key, item.toTensor());
        }
      }
      return;
    }
    case ArgKind::integer:
      if (value.isInt()) return add_integer(key, value.toInt());
      if (value.isBool()) return add_bool(key, value.toBool());
      return add_none(key);
    case ArgKind::integer_list: {
      if (value.isIntList()) {
        const auto list = value.toIntList();
        add_list(key, list.size());
        for (const int64_t i : list) add_integer(key, i);
        return;
      }
      for (const auto& item : value.toListRef()) {
        key.add(item.isBool() ? static_cast<uint64_t>(item.toBool())
                              : static_cast<uint64_t>(item.toInt()));
      }
      return key.add(kList);
    }
    case ArgKind::scalar:
      return add_scalar(key, value);
    case ArgKind::scalar_list:
      for (const auto& item : value.toListRef()) add_scalar(key, item);
      return key.add(kList);
    case ArgKind::text:
      return add_text(key, value.toStringView());
    case ArgKind::other:
      return add_texts(key, value);
    case ArgKind::generator:
      return;
  }
}

}  // namespace

namespace words {

void add_plain_tensor(const OpEntry& entry, DecisionKey& key, const at::Tensor& tensor) {
  if (!tensor.defined()) return add_none(key);
  if (!is_taken_as_replicated(tensor) && !is_literal_index(entry, tensor)) {
    refuse_plain(entry, tensor);
  }
  key.add(kPlain + (static_cast<uint64_t>(tensor.scalar_type()) << 8) +
          (static_cast<uint64_t>(tensor.unsafeGetTensorImpl()->is_wrapped_number()) << 16));
  key.add(static_cast<uint64_t>(tensor.dim()));
  for (int64_t size : tensor.sizes()) key.add(static_cast<uint64_t>(size));
  for (int64_t stride : tensor.strides()) key.add(static_cast<uint64_t>(stride));
}

}  // namespace words

void add_call(const OpEntry& entry, const Stack& stack, DecisionKey& key) {
  const size_t base = stack.size() - entry.args.size();
  for (size_t i = 0; i < entry.args.size(); ++i) {
    add_arg(entry, key, entry.args[i], stack[base + i]);
  }
}

bool is_taken_as_replicated(const at::Tensor& plain) {
  return is_one_number(plain) || ImplicitReplication::current() || plain_is_internal(plain) ||
         is_materialized_zero(plain);
}

void check_plain(const OpEntry& entry, const Stack& stack) {
  if (takes_lazy(entry, stack)) return;
  for (const auto& operand : operands_of(entry, stack)) {
    if (operand.sharded != nullptr || !operand.tensor->defined()) continue;
    if (!is_taken_as_replicated(*operand.tensor)) refuse_plain(entry, *operand.tensor);
  }
}

}  // namespace tessera::dtensor
