#pragma once

#include <c10/core/Scalar.h>

#include <bit>
#include <cstring>
#include <string_view>
#include <type_traits>

#include "tessera/dtensor/dispatch/decide/decision.h"
#include "tessera/dtensor/dispatch/dispatch.h"

namespace tessera::dtensor {

/// Adds everything that a decision about the call on top of the stack depends on: the shardings of
/// its tensors, and those arguments that can matter. Throws if the call has a plain tensor that no
/// guard allows.
void add_call(const OpEntry& entry, const Stack& stack, DecisionKey& key);

/// Whether a plain tensor beside sharded ones counts as replicated: one number, one that libtorch
/// or autograd made (composite.h), or any under an ImplicitReplication guard.
bool is_taken_as_replicated(const at::Tensor& plain);

/// The key words of one argument. The same words whether it comes from a stack or as a C++ value
/// (dtensor/kernels/typed_kernel.h).
namespace words {

/// Tags separate neighbouring arguments of a key; no integer argument has such a value.
enum Tag : uint64_t { kNone = 0xa1b2'c3d4'0000'0001, kPlain, kList, kNumber, kText };

inline void add_none(DecisionKey& key) { key.add(kNone); }
inline void add_integer(DecisionKey& key, int64_t value) { key.add(static_cast<uint64_t>(value)); }
inline void add_bool(DecisionKey& key, bool value) { key.add(static_cast<uint64_t>(value) + 2); }
inline void add_list(DecisionKey& key, size_t size) { key.add(kList + (size << 8)); }

/// A number's type can change the result's dtype, so it is part of the key; its value only as far
/// as a rule queries it.
template <class Number>
void add_number(DecisionKey& key, Number value) {
  constexpr bool kIsBool = std::is_same_v<Number, bool>;
  constexpr bool kIsInt = std::is_same_v<Number, int64_t>;
  key.add(kNumber + (kIsInt ? 16 : kIsBool ? 48 : 32));
  if constexpr (kIsInt || kIsBool) {
    key.add_number(static_cast<uint64_t>(value));
  } else {
    key.add_number(std::bit_cast<uint64_t>(value));
  }
}
/// Two numbers, which no rule sees (decide/rule_args.cpp).
inline void add_complex(DecisionKey& key, c10::complex<double> value) {
  key.add(kNumber + 64);
  key.add_number(std::bit_cast<uint64_t>(value.real()));
  key.add_number(std::bit_cast<uint64_t>(value.imag()));
}
inline void add_other_number(DecisionKey& key) { key.add(kNumber + 80); }

inline void add_text(DecisionKey& key, std::string_view value) {
  key.add(kText + (value.size() << 8));
  while (!value.empty()) {
    uint64_t word = 0;
    const std::string_view part = value.substr(0, sizeof(word));
    std::memcpy(&word, part.data(), part.size());
    key.add(word);
    value.remove_prefix(part.size());
  }
}

void add_plain_tensor(const OpEntry& entry, DecisionKey& key, const at::Tensor& tensor);

/// `meta`: of this tensor, nullptr for a plain one.
inline void add_tensor(const OpEntry& entry, DecisionKey& key, const at::Tensor& tensor,
                       const ShardedMeta* meta) {
  if (meta != nullptr) return key.add(static_cast<const void*>(meta->sharding().id()));
  add_plain_tensor(entry, key, tensor);
}
inline void add_tensor(const OpEntry& entry, DecisionKey& key, const at::Tensor& tensor) {
  add_tensor(entry, key, tensor, sharded_meta(tensor));
}

}  // namespace words
}  // namespace tessera::dtensor
