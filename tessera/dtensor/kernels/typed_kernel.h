#pragma once

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/core/InferenceMode.h>

#include <algorithm>
#include <array>
#include <memory>
#include <optional>
#include <tuple>
#include <utility>
#include <vector>

#include "tessera/base/errors.h"
#include "tessera/dtensor/dispatch/call_key.h"
#include "tessera/dtensor/dispatch/gathered_views.h"
#include "tessera/dtensor/dispatch/local_call.h"
#include "tessera/dtensor/dispatch/reshaped_bases.h"
#include "tessera/dtensor/dispatch/write_count.h"
#include "tessera/dtensor/lazy.h"

/// Unboxed kernels for frequently called ops: arguments and results stay C++ values, while the
/// boxed kernel pushes and pops each of them twice. They handle the steady state, a cached decision
/// without redistribution; every other call goes to the boxed kernel. Both compute the same key and
/// so share decisions.
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

/// Predicates on arguments that need the boxed kernel.
inline bool is_lazy(const at::Tensor& tensor) { return lazy_local(tensor) != nullptr; }
inline bool is_lazy(const std::optional<at::Tensor>& tensor) { return tensor && is_lazy(*tensor); }
inline bool is_lazy(at::TensorList tensors) {
  return std::ranges::any_of(tensors, [](const at::Tensor& tensor) { return is_lazy(tensor); });
}
template <class T>
bool is_lazy(const T&) {
  return false;
}

/// Views of such a copy are copies too.
inline bool is_copy_of_view(const at::Tensor& tensor) {
  const ShardedMeta* meta = sharded_meta(tensor);
  return meta != nullptr && meta->is_copy_of_view();
}

inline bool reads_gathered_view(const at::Tensor& tensor) { return is_gathered_view(tensor); }
inline bool reads_gathered_view(const std::optional<at::Tensor>& tensor) {
  return tensor && is_gathered_view(*tensor);
}
inline bool reads_gathered_view(at::TensorList tensors) {
  return std::ranges::any_of(tensors, is_gathered_view);
}
template <class T>
bool reads_gathered_view(const T&) {
  return false;
}

/// A write to it would be lost, or it is a plain tensor that has to become sharded first.
inline bool is_refused_as_written(const at::Tensor& tensor) {
  const ShardedMeta* meta = sharded_meta(tensor);
  return meta == nullptr || meta->is_copy_of_view();
}
inline bool is_refused_as_written(at::TensorList tensors) {
  return std::ranges::any_of(
      tensors, [](const at::Tensor& tensor) { return is_refused_as_written(tensor); });
}
template <class T>
bool is_refused_as_written(const T&) {
  return true;
}

/// Instantiated per signature rather than per op: many ops share one, and each costs about a second
/// of compile time.
template <class Schema>
class TypedKernel;

template <class Result, class... Args>
class TypedKernel<Result(Args...)> final : public c10::OperatorKernel {
  static constexpr bool kInPlace = std::is_same_v<Result, at::Tensor&>;
  /// foreach and fused ops that write to tensors of their lists.
  static constexpr bool kWritesLists = std::is_void_v<Result>;

 public:
  /// `call` is the op on any tensors.
  TypedKernel(std::shared_ptr<const OpEntry> entry, c10::OperatorHandle op,
              c10::KernelFunction boxed, Result (*call)(Args...))
      : entry_(std::move(entry)), op_(std::move(op)), boxed_(std::move(boxed)), call_(call) {}

  Result operator()(Args... args) {
    const Decision* decision = direct_decision(args...);
    if (decision == nullptr) {
      return boxed_.template call<Result, Args...>(op_, c10::DispatchKeySet(kKey),
                                                   std::forward<Args>(args)...);
    }
    const at::AutoDispatchBelowADInplaceOrView below_autograd;
    if constexpr (!kWritesLists) {
      if (entry_->is_view) {
        const at::Tensor& viewed = first_of(args...);
        Result views =
            decision->local_views.are_known_for(local_of(viewed))
                ? again(*decision, local_of(viewed))
                : run(*decision, std::index_sequence_for<Args...>(), std::forward<Args>(args)...);
        set_offsets(*decision, viewed.storage_offset(), views);
        share_counts(local_of(viewed), views);
        return views;
      }
    }
    return run(*decision, std::index_sequence_for<Args...>(), std::forward<Args>(args)...);
  }

 private:
  const Decision* direct_decision(const std::remove_reference_t<Args>&... args) const {
    if (entry_->decomposition != nullptr) return nullptr;
    if (LazyLocal::any() && (is_lazy(args) || ...)) return nullptr;
    if (any_gathered_views() && (kInPlace || kWritesLists || (reads_gathered_view(args) || ...))) {
      return nullptr;
    }
    if ((kInPlace || kWritesLists) && any_reshaped_bases()) return nullptr;
    const auto& first = first_of(args...);
    if constexpr (kInPlace) {
      if (is_refused_as_written(first)) return nullptr;
    }
    if constexpr (kWritesLists) {
      if (!entry_->hidden.empty()) return nullptr;
      int index = 0;
      if (((is_written(index++) && is_refused_as_written(args)) || ...)) return nullptr;
    }
    if (entry_->is_view &&
        (first.is_inference() != c10::InferenceMode::is_enabled() || is_copy_of_view(first))) {
      return nullptr;
    }
    DecisionKey key;
    (words::add(*entry_, key, args), ...);
    const Decision* decision = DecisionCache::find(entry_->id, key);
    return decision != nullptr && decision->direct ? decision : nullptr;
  }

  bool is_written(int index) const {
    return std::ranges::find(entry_->written, index) != entry_->written.end();
  }

  static void set_offsets(const Decision& decision, int64_t base, const at::Tensor& view) {
    set_view_offset(decision, 0, base, view);
  }
  static void set_offsets(const Decision& decision, int64_t base,
                          const std::vector<at::Tensor>& views) {
    for (size_t i = 0; i < views.size(); ++i) set_view_offset(decision, i, base, views[i]);
  }
  template <class... Tensors>  // no view op has such results
  static void set_offsets(const Decision&, int64_t, const std::tuple<Tensors...>&) {}

  static void share_counts(const at::Tensor& base, const at::Tensor& view) {
    share_write_count(base, view);
  }
  static void share_counts(const at::Tensor& base, const std::vector<at::Tensor>& views) {
    for (const at::Tensor& view : views) share_write_count(base, view);
  }
  static void count_writes(const OpEntry& entry, at::TensorList written) {
    for (const at::Tensor& tensor : written) {
      count_write(local_of(tensor));
      count_write_of_item(entry, tensor);
    }
  }
  template <class T>  // such ops write to nothing else
  static void count_writes(const OpEntry&, const T&) {}

  template <class... Tensors>
  static void share_counts(const at::Tensor&, const std::tuple<Tensors...>&) {}

  static const at::Tensor& first_of(const at::Tensor& first, const auto&...) { return first; }
  static at::Tensor first_of(at::TensorList, const auto&...) { return {}; }  // no view op has it

  template <size_t... I>
  Result run(const Decision& decision, std::index_sequence<I...>, Args... args) {
    if constexpr (kInPlace) {
      count_write(local_of(first_of(args...)));
      call_(ArgOfLocalCall<Args>(decision, static_cast<int>(I), std::forward<Args>(args)).get()...);
      return std::get<0>(std::tie(args...));
    } else if constexpr (kWritesLists) {
      ((is_written(static_cast<int>(I)) ? count_writes(*entry_, args) : void()), ...);
      call_(ArgOfLocalCall<Args>(decision, static_cast<int>(I), std::forward<Args>(args)).get()...);
    } else {
      Result locals = call_(
          ArgOfLocalCall<Args>(decision, static_cast<int>(I), std::forward<Args>(args)).get()...);
      if (entry_->is_view) keep_views(decision, local_of(first_of(args...)), locals);
      return wrapped(decision, std::move(locals));
    }
  }

  /// The results of the last call, for another local tensor of the same layout.
  Result again(const Decision& decision, const at::Tensor& base) const {
    if constexpr (std::is_same_v<Result, at::Tensor>) {
      return decision.known[0].wrap(decision.local_views.make(base, 0), decision.results[0]);
    } else if constexpr (std::is_same_v<Result, std::vector<at::Tensor>>) {
      Result views(decision.local_views.count());
      for (size_t i = 0; i < views.size(); ++i) {
        views[i] = decision.known[i].wrap(decision.local_views.make(base, i), decision.results[i]);
      }
      return views;
    } else {
      throw InternalError("a view op with such results");
    }
  }

  void keep_views(const Decision& decision, const at::Tensor& base, const at::Tensor& view) const {
    keep_views(decision, base, at::TensorList(view));
  }
  void keep_views(const Decision& decision, const at::Tensor& base, at::TensorList views) const {
    for (size_t i = 0; i < views.size(); ++i) {
      if (i >= decision.known.size() || !decision.known[i].fits(views[i], true)) return;
    }
    decision.local_views.keep(base, views);
  }
  template <class... Tensors>
  static void keep_views(const Decision&, const at::Tensor&, const std::tuple<Tensors...>&) {}

  at::Tensor wrapped(const Decision& decision, size_t index, at::Tensor local) const {
    const KnownResult& known = decision.known[index];
    if (!known.fits(local, entry_->is_view)) [[unlikely]] {
      return wrap_result(*entry_, decision, index, std::move(local));
    }
    return known.wrap(std::move(local), decision.results[index]);
  }
  at::Tensor wrapped(const Decision& decision, at::Tensor local) const {
    return wrapped(decision, 0, std::move(local));
  }
  std::vector<at::Tensor> wrapped(const Decision& decision, std::vector<at::Tensor> locals) const {
    for (size_t i = 0; i < locals.size(); ++i) {
      locals[i] = wrapped(decision, i, std::move(locals[i]));
    }
    return locals;
  }
  template <class... Tensors>
  std::tuple<Tensors...> wrapped(const Decision& decision, std::tuple<Tensors...> locals) const {
    return [&]<size_t... I>(std::index_sequence<I...>) {
      return std::tuple<Tensors...>(wrapped(decision, I, std::move(std::get<I>(locals)))...);
    }
    (std::index_sequence_for<Tensors...>());
  }

  std::shared_ptr<const OpEntry> entry_;
  c10::OperatorHandle op_;
  c10::KernelFunction boxed_;
  Result (*call_)(Args...);
};

/// The op's typed kernel if it has one, else `boxed`.
c10::KernelFunction typed_or_boxed(std::shared_ptr<const OpEntry> entry,
                                   const c10::OperatorHandle& op, c10::KernelFunction boxed);

}  // namespace tessera::dtensor
