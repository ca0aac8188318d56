#pragma once

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/core/InferenceMode.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <tuple>
#include <utility>
#include <vector>

#include "tessera/base/errors.h"
#include "tessera/dtensor/dispatch/gathered_views.h"
#include "tessera/dtensor/dispatch/local_call.h"
#include "tessera/dtensor/dispatch/write_count.h"
#include "tessera/dtensor/kernels/typed_args.h"
#include "tessera/dtensor/tensor/lazy.h"

/// Unboxed kernels for frequently called ops: arguments and results stay C++ values, while the
/// boxed kernel pushes and pops each of them twice. They handle the steady state, a cached decision
/// without redistribution; every other call goes to the boxed kernel. Both compute the same key and
/// so share decisions.
namespace tessera::dtensor {

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
    if constexpr (kWritesLists) {
      if (run_on_lists(std::index_sequence_for<Args...>(), args...)) return;
      return run_boxed(std::forward<Args>(args)...);
    } else {
      const Decision* decision = direct_decision(args...);
      if (decision == nullptr) return run_boxed(std::forward<Args>(args)...);
      const at::AutoDispatchBelowADInplaceOrView below_autograd;
      if (entry_->is_view) {
        const at::Tensor& viewed = first_of(args...);
        Result views =
            decision->local_views.are_known_for(local_of(viewed))
                ? again(*decision, local_of(viewed))
                : run(*decision, std::index_sequence_for<Args...>(), std::forward<Args>(args)...);
        set_offsets(*decision, offset_in_bytes(viewed), views);
        share_counts(local_of(viewed), views);
        return views;
      }
      return run(*decision, std::index_sequence_for<Args...>(), std::forward<Args>(args)...);
    }
  }

 private:
  Result run_boxed(Args... args) {
    return boxed_.template call<Result, Args...>(op_, c10::DispatchKeySet(kKey),
                                                 std::forward<Args>(args)...);
  }

  /// Whether tensors of this call need the boxed kernel.
  bool needs_boxed(const std::remove_reference_t<Args>&... args) const {
    if (entry_->decomposition != nullptr) return true;
    if (LazyLocal::any() && (is_lazy(args) || ...)) return true;
    return any_gathered_views() && (kInPlace || kWritesLists || (reads_gathered_view(args) || ...));
  }

  const Decision* direct_decision(const std::remove_reference_t<Args>&... args) const {
    if (needs_boxed(args...)) return nullptr;
    const auto& first = first_of(args...);
    if constexpr (kInPlace) {
      if (is_refused_as_written(first)) return nullptr;
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

  /// Returns false if the boxed kernel is needed.
  template <size_t... I>
  bool run_on_lists(std::index_sequence<I...>, std::remove_reference_t<Args>&... args) {
    if (needs_boxed(args...) || !entry_->hidden.empty()) return false;
    DecisionKey key;
    std::tuple<ArgOfListCall<Args>...> made;
    const bool is_added =
        (std::get<I>(made).add(*entry_, key, is_written(static_cast<int>(I)), args) && ...);
    if (!is_added) return false;
    const Decision* decision = DecisionCache::find(entry_->id, key);
    if (decision == nullptr || !decision->direct) return false;
    ((is_written(static_cast<int>(I)) ? std::get<I>(made).count_writes(*entry_, args) : void()),
     ...);
    const at::AutoDispatchBelowADInplaceOrView below_autograd;
    call_(std::get<I>(made).get(*decision, static_cast<int>(I), std::forward<Args>(args))...);
    return true;
  }

  bool is_written(int index) const {
    return std::ranges::find(entry_->written, index) != entry_->written.end();
  }

  static void set_offsets(const Decision& decision, int64_t bytes, const at::Tensor& view) {
    set_view_offset(decision, 0, bytes, view);
  }
  static void set_offsets(const Decision& decision, int64_t bytes,
                          const std::vector<at::Tensor>& views) {
    for (size_t i = 0; i < views.size(); ++i) set_view_offset(decision, i, bytes, views[i]);
  }
  template <class... Tensors>  // no view op has such results
  static void set_offsets(const Decision&, int64_t, const std::tuple<Tensors...>&) {}

  static void share_counts(const at::Tensor& base, const at::Tensor& view) {
    share_write_count(base, view);
  }
  static void share_counts(const at::Tensor& base, const std::vector<at::Tensor>& views) {
    for (const at::Tensor& view : views) share_write_count(base, view);
  }
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
