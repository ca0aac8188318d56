#include "tessera/dtensor/call_key.h"

#include <ATen/core/List.h>

#include <bit>
#include <string_view>

#include "tessera/base/errors.h"
#include "tessera/dtensor/composite.h"
#include "tessera/dtensor/lazy.h"
#include "tessera/dtensor/policy.h"

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
  if (!is_taken_as_replicated(tensor) && !is_literal_index(entry, tensor)) {
    refuse_plain(entry, tensor);
  }
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

}  // namespace

void add_call(const OpEntry& entry, const Stack& stack, DecisionKey& key) {
  const size_t base = stack.size() - entry.args.size();
  for (size_t i = 0; i < entry.args.size(); ++i) {
    add_arg(entry, key, entry.args[i], stack[base + i]);
  }
}

void check_plain(const OpEntry& entry, const Stack& stack) {
  if (takes_lazy(entry, stack)) return;
  for (const auto& operand : operands_of(entry, stack)) {
    if (operand.sharded != nullptr || !operand.tensor->defined()) continue;
    if (!is_taken_as_replicated(*operand.tensor)) refuse_plain(entry, *operand.tensor);
  }
}

}  // namespace tessera::dtensor
