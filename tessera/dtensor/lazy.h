#pragma once

#include <ATen/core/Tensor.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "tessera/dtensor/sharded_tensor.h"

/// Sharded tensors whose value for computing is unsharded when an op needs it. A parameter that
/// fully_shard holds is one: at rest it is its shards, an op that computes with it gets the whole.
///
///   linear(x, p)              x is plain: the op runs on the unsharded tensor, its result is plain
///   p.t(), p[0], p.view(...)  stay lazy: a recipe, replayed on the unsharded tensor. What autograd
///                             saves for backward is therefore never the unsharded tensor
///   p.to(bfloat16)            stays lazy: cast shards, and the unsharded tensor is cast again
///   p.add_(grad, -lr)         writes to the shards, as on any sharded tensor
///   grad.add(p, decay)        among sharded tensors of p's mesh: on the shards
///
/// An op on lazy tensors alone computes with the unsharded value where autograd records it (one of
/// them requires a gradient) or replays it, and works on the shards elsewhere, as optimizers do.
/// Its result is lazy then: it may yet come together with plain tensors.
///
/// A lazy tensor may report another dtype than its shards have (report_dtype), the one that it is
/// computed with. Writes still go to the shards as they are; what reads them gets the reported one.
///
/// This room does not know who produces. Where no lazy tensor exists, an op pays one load for it.
namespace tessera::dtensor {

class LazyLocal {
 public:
  LazyLocal();
  virtual ~LazyLocal();
  LazyLocal(const LazyLocal&) = delete;
  LazyLocal& operator=(const LazyLocal&) = delete;

  /// The tensor that ops compute with: plain, or sharded over other axes alone. Asked once for each
  /// use; may communicate, so every rank asks in the same order. Not to be written to.
  virtual at::Tensor unsharded() = 0;
  /// The op that asked has run, or failed, and holds the unsharded tensor no more.
  virtual void release() {}
  /// The same of an ordinary sharded tensor that was computed from the shards.
  virtual at::Tensor produced_from(const at::Tensor& computed) = 0;
  /// The same tensor as an ordinary sharded one, sharing its memory.
  virtual at::Tensor shards() = 0;
  /// The shards are about to be written to.
  virtual void shards_change() = 0;
  /// Gives shards that are on meta memory on `device`, with values yet to be written, and so all
  /// that share memory with them. False: the tensor is filled as any other one.
  virtual bool to_empty(c10::Device) { return false; }
  /// The dtype of unsharded(); nullopt: the one that the tensor reports.
  virtual std::optional<at::ScalarType> compute_dtype() const { return std::nullopt; }

  /// What views of it, and views of those, are like: the same ones are made in every step, and to
  /// ask libtorch takes longer than to look.
  struct KnownView {
    const void* op = nullptr;
    std::vector<int64_t> arguments;  ///< all after the first tensor
    Sharding of;                     ///< what it is a view of
    Sharding is;
    int64_t offset = 0;  ///< of its first element from that of `of`
  };
  std::shared_ptr<const KnownView> find_view(const KnownView& like) const;
  void keep_view(KnownView view);
  /// Of a view, what it is a view of in the end.
  virtual LazyLocal& root() { return *this; }

  /// Whether any object of this kind lives in the process.
  static bool any() { return alive_.load(std::memory_order_relaxed) != 0; }

 private:
  std::vector<std::shared_ptr<const KnownView>> views_;
  static std::atomic<int64_t> alive_;
};

/// As become() of sharded_tensor.h, for a lazy tensor that is computed with on another device than
/// it rests on: it reports the one it is computed with, where its gradients come from.
void become(const at::Tensor& tensor, at::Tensor local, const Sharding& sharding,
            std::shared_ptr<LazyLocal> lazy, c10::Device device);

/// The shards of a lazy tensor in the dtype that it reports; not to be written to.
at::Tensor shards_to_read(const at::Tensor& tensor, LazyLocal& lazy);

/// nullptr for plain tensors and for those that are what they hold.
inline LazyLocal* lazy_local(const at::Tensor& tensor) {
  const ShardedMeta* meta = sharded_meta(tensor);
  return meta != nullptr ? meta->lazy().get() : nullptr;
}

}  // namespace tessera::dtensor
