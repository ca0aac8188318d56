#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "tessera/dtensor/dispatch/call_key.h"
#include "tessera/dtensor/dispatch/write_count.h"
#include "tessera/dtensor/tensor/sharded_tensor.h"

/// Arguments of typed kernels (typed_kernel.h): their words in the key of a decision, and the
/// values that the call on local tensors gets.
namespace tessera::dtensor {

/// The key words of an argument; must equal those that add_call produces for it on a stack.
namespace words {

inline void add(const OpEntry& entry, DecisionKey& key, const at::Tensor& value) {
  add_tensor(entry, key, value);
}
inline void add(const OpEntry&, DecisionKey& key, int64_t value) { add_integer(key, value); }
inline void add(const OpEntry&, DecisionKey& key, bool value) { add_bool(key, value); }
inline void add(const OpEntry&, DecisionKey& key, double value) { add_number(key, value); }
inline void add(const OpEntry&, DecisionKey& key, at::ScalarType value) {
  add_integer(key, static_cast<int64_t>(value));
}
inline void add(const OpEntry&, DecisionKey& key, at::MemoryFormat value) {
  add_integer(key, static_cast<int64_t>(value));
}
inline void add(const OpEntry&, DecisionKey& key, const at::Scalar& value) {
  if (value.isIntegral(false)) return add_number(key, value.toLong());
  if (value.isBoolean()) return add_number(key, value.toBool());
  if (value.isFloatingPoint()) return add_number(key, value.toDouble());
  if (value.isComplex()) return add_complex(key, value.toComplexDouble());
  add_other_number(key);
}
inline void add(const OpEntry& entry, DecisionKey& key, const c10::SymInt& value) {
  add(entry, key, value.expect_int());
}
inline void add(const OpEntry&, DecisionKey& key, at::IntArrayRef value) {
  add_list(key, value.size());
  for (const int64_t i : value) add_integer(key, i);
}
inline void add(const OpEntry&, DecisionKey& key, c10::SymIntArrayRef value) {
  add_list(key, value.size());
  for (const auto& i : value) add_integer(key, i.expect_int());
}
inline void add(const OpEntry&, DecisionKey& key, c10::string_view value) { add_text(key, value); }
template <size_t kSize>
void add(const OpEntry&, DecisionKey& key, const std::array<bool, kSize>& values) {
  for (const bool value : values) key.add(static_cast<uint64_t>(value));
  key.add(kList);
}
inline void add(const OpEntry& entry, DecisionKey& key, at::TensorList values) {
  add_list(key, values.size());
  for (const at::Tensor& value : values) add_tensor(entry, key, value);
}
template <class T>
void add(const OpEntry& entry, DecisionKey& key, const std::optional<T>& value) {
  if (value) return add(entry, key, *value);
  add_none(key);
}
template <class T>
void add(const OpEntry& entry, DecisionKey& key, const c10::OptionalArrayRef<T>& value) {
  if (value) return add(entry, key, *value);
  add_none(key);
}

}  // namespace words

/// The local value of an argument. Owns what the local call references.
template <class Arg>
struct ArgOfLocalCall {
  explicit ArgOfLocalCall(const Decision&, int, Arg value) : value(std::forward<Arg>(value)) {}
  Arg get() { return std::forward<Arg>(value); }
  Arg value;
};

inline const at::Tensor& local_of(const at::Tensor& tensor) {
  const ShardedMeta* meta = sharded_meta(tensor);
  return meta != nullptr ? meta->local() : tensor;
}

template <>
struct ArgOfLocalCall<const at::Tensor&> {
  explicit ArgOfLocalCall(const Decision&, int, const at::Tensor& tensor)
      : value(local_of(tensor)) {}
  const at::Tensor& get() { return value; }
  const at::Tensor& value;
};

template <>
struct ArgOfLocalCall<at::Tensor&> {
  explicit ArgOfLocalCall(const Decision&, int, at::Tensor& tensor) : value(local_of(tensor)) {}
  at::Tensor& get() { return value; }
  at::Tensor value;
};

template <>
struct ArgOfLocalCall<const std::optional<at::Tensor>&> {
  explicit ArgOfLocalCall(const Decision&, int, const std::optional<at::Tensor>& tensor) {
    if (tensor) value = local_of(*tensor);
  }
  const std::optional<at::Tensor>& get() { return value; }
  std::optional<at::Tensor> value;
};

template <>
struct ArgOfLocalCall<at::TensorList> {
  explicit ArgOfLocalCall(const Decision&, int, at::TensorList tensors) {
    value.reserve(tensors.size());
    for (const at::Tensor& tensor : tensors) value.push_back(local_of(tensor));
  }
  at::TensorList get() { return value; }
  std::vector<at::Tensor> value;
};

/// An argument of an op that writes to lists: added to the key and made local in one pass, because
/// each pass over hundreds of parameters misses the caches.
template <class Arg>
struct ArgOfListCall {
  /// Returns false if the boxed kernel is needed.
  bool add(const OpEntry& entry, DecisionKey& key, bool is_written, const auto& given) {
    if (is_written) return false;  // no list
    words::add(entry, key, given);
    return true;
  }
  void count_writes(const OpEntry&, const auto&) const {}
  Arg get(const Decision& decision, int index, Arg given) {
    return made.emplace(decision, index, std::forward<Arg>(given)).get();
  }
  std::optional<ArgOfLocalCall<Arg>> made;
};

template <>
struct ArgOfListCall<at::TensorList> {
  bool add(const OpEntry& entry, DecisionKey& key, bool is_written, at::TensorList tensors) {
    words::add_list(key, tensors.size());
    key.reserve(tensors.size());
    locals.reserve(tensors.size());
    for (const at::Tensor& tensor : tensors) {
      const ShardedMeta* meta = sharded_meta(tensor);
      // A write to it would be lost, or it is a plain tensor that has to become sharded first.
      if (is_written && (meta == nullptr || meta->is_copy_of_view())) return false;
      words::add_tensor(entry, key, tensor, meta);
      locals.push_back(meta != nullptr ? meta->local() : tensor);
    }
    return true;
  }
  void count_writes(const OpEntry& entry, at::TensorList tensors) const {
    for (const at::Tensor& local : locals) count_write(local);
    if (entry.is_fused) return;
    for (const at::Tensor& tensor : tensors) count_write_of_item(entry, tensor);
  }
  at::TensorList get(const Decision&, int, at::TensorList) const { return locals; }
  std::vector<at::Tensor> locals;
};

/// Global sizes, which the decision may replace by local ones.
template <>
struct ArgOfLocalCall<c10::SymIntArrayRef> {
  explicit ArgOfLocalCall(const Decision& decision, int index, c10::SymIntArrayRef given)
      : value(decision.direct_sizes.at == index
                  ? c10::fromIntArrayRefSlow(decision.direct_sizes.sizes)
                  : given) {}
  c10::SymIntArrayRef get() { return value; }
  c10::SymIntArrayRef value;
};

}  // namespace tessera::dtensor
