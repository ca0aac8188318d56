#pragma once

#include <ATen/core/Tensor.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "tessera/dtensor/tensor/sharded_tensor.h"

/// Lazy sharded tensors: the value to compute with is unsharded only when an op needs it. A
/// parameter of fully_shard is one: at rest it is its shards; an op that computes with it gets the
/// full tensor.
///
///   linear(x, p)              x is plain: the op runs on the unsharded tensor; its result is plain
///   p.t(), p[0], p.view(...)  stay lazy: a recipe, replayed on the unsharded tensor. So autograd
///                             never saves the unsharded tensor for backward
///   p.to(bfloat16)            stays lazy: casts the shards; the unsharded tensor is cast again
///   p.add_(grad, -lr)         writes to the shards, as on any sharded tensor
///   grad.add(p, decay)        with sharded tensors of p's mesh: computes on the shards
///
/// An op whose tensors are all lazy computes with the unsharded values if autograd records or
/// replays it (one of them requires grad), or in forward of a module, which checkpointing may
/// replay; otherwise on the shards, as optimizers need. In the latter case its result is lazy,
/// since it may still be combined with plain tensors.
///
/// A lazy tensor may report another dtype than its shards have (report_dtype): the one it is
/// computed with. Writes go to the shards in their own dtype; reads get the reported one while a
/// module computes.
///
/// Independent of what implements LazyLocal. Costs one atomic load per op while no lazy tensor
/// exists.
namespace tessera::dtensor {

/// Lazy tensors that share memory, such as the parameters of one fully_shard call.
class LazyGroup {
 public:
  virtual ~LazyGroup() = default;

  /// Makes the tensors ordinary ones in place, with their unsharded values, so that they can be
  /// sharded over further axes (distribute_). They must have no gradient. Collective.
  virtual void suspend() = 0;
  /// Makes them lazy again, and keeps the axes that they are sharded over now.
  virtual void resume() = 0;
};

class LazyLocal {
 public:
  LazyLocal();
  virtual ~LazyLocal();
  LazyLocal(const LazyLocal&) = delete;
  LazyLocal& operator=(const LazyLocal&) = delete;

  /// The tensor that ops compute with: plain, or sharded over other axes only. Called once per use;
  /// may communicate, so every rank must call it in the same order. Must not be written to.
  virtual at::Tensor unsharded() = 0;
  /// Called after the op that used the unsharded tensor has completed or failed and dropped it.
  virtual void release() {}
  /// unsharded() of an ordinary sharded tensor that was computed from the shards.
  virtual at::Tensor unsharded_from(const at::Tensor& computed) = 0;
  /// The one whose unsharded_from() this one calls; nullptr: it has its own. Results of ops refer
  /// to that one alone, because they must not keep the memory of their operands.
  virtual std::shared_ptr<LazyLocal> origin() const { return nullptr; }
  /// The same tensor as an ordinary sharded one; shares memory.
  virtual at::Tensor shards() = 0;
  /// Called before the shards are written to.
  virtual void shards_change() = 0;
  /// Allocates uninitialized memory on `device` for shards that are on meta, and for all shards
  /// that share memory with them. Returns false if the tensor is filled like any other one.
  virtual bool to_empty(c10::Device) { return false; }
  /// The sharding of unsharded() over other axes; nullopt: it is plain.
  virtual std::optional<Sharding> unsharded_sharding() const { return std::nullopt; }
  /// nullptr if the tensor cannot be suspended.
  virtual std::shared_ptr<LazyGroup> group() { return nullptr; }
  /// Whether a module computes with the tensor. Otherwise ops on its shards use their dtype,
  /// whatever the tensor reports.
  virtual bool computes() const { return true; }
  /// Whether a module's forward computes with the tensor.
  virtual bool in_forward() const {
    const auto from = origin();
    return from != nullptr && from->in_forward();
  }
  /// The dtype of unsharded(); nullopt: the dtype that the tensor reports.
  virtual std::optional<at::ScalarType> compute_dtype() const { return std::nullopt; }

  /// Cache of the properties of its views, including views of views: every step creates the same
  /// ones, and a look-up is faster than calling libtorch.
  struct KnownView {
    const void* op = nullptr;
    std::vector<int64_t> arguments;  ///< all after the first tensor
    Sharding of;                     ///< what it is a view of
    Sharding is;
    int64_t offset = 0;  ///< of its first element, relative to that of `of`
  };
  std::shared_ptr<const KnownView> find_view(const KnownView& like) const;
  void keep_view(KnownView view);
  /// For a view, the root of its chain of views.
  virtual LazyLocal& root() { return *this; }

  /// Whether any LazyLocal exists in the process.
  static bool any() { return alive_.load(std::memory_order_relaxed) != 0; }

 private:
  std::vector<std::shared_ptr<const KnownView>> views_;
  static std::atomic<int64_t> alive_;
};

/// become() of sharded_tensor.h for a lazy tensor whose compute device differs from the device of
/// its shards: it reports the compute device, because its gradients are produced there.
void become(const at::Tensor& tensor, at::Tensor local, const Sharding& sharding,
            std::shared_ptr<LazyLocal> lazy, c10::Device device);

/// The inverse of become(): makes a sharded tensor a plain one in place, with the value and memory
/// of `plain`.
void become_plain(const at::Tensor& tensor, const at::Tensor& plain);

/// The shards of a lazy tensor, while it computes in the dtype that it reports. Must not be written
/// to.
at::Tensor shards_to_read(const at::Tensor& tensor, LazyLocal& lazy);

/// nullptr for plain tensors and for ordinary sharded ones.
inline LazyLocal* lazy_local(const at::Tensor& tensor) {
  const ShardedMeta* meta = sharded_meta(tensor);
  return meta != nullptr ? meta->lazy().get() : nullptr;
}

}  // namespace tessera::dtensor
