#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "tessera/base/api.h"

namespace torch::nn {
class Module;
}

/// Which dtype a parameter of fully_shard with a mixed-precision policy reports. At rest, for the
/// optimizer and in state dicts, it is the dtype of its shards. While its module computes it is
/// `param_dtype`, because unmodified code compares with, and casts to, the dtype of its weights.
///
///   auto net = fully_shard(model, mesh, {.mp_policy = {.param_dtype = at::kBFloat16}});
///   net(x);                                 // inside, parameters of model report kBFloat16
///
///   fully_shard(*model, mesh, ...);         // nothing is returned that could be called instead
///   {
///     const ComputeDtypeGuard guard(*model);
///     model->encode(x);                     // as inside; also for methods beside forward
///   }
///   model->parameters()[0].scalar_type();   // kFloat
///
/// After unshard() parameters report the compute dtype, too, until they are resharded.
///
/// From the first gradient to the end of a backward, all parameters of the rank report their
/// compute dtype, since activation checkpointing recomputes there. Gradients, and optimizers that
/// run in post-accumulate-grad hooks, use the dtype at rest. Threads must not run modules
/// concurrently on the same parameters.
namespace tessera {

namespace fsdp {

class ParamGroup;

/// The groups of some parameters, which compute while it is entered. Can be entered repeatedly.
class TESSERA_API ComputeDtypeScope {
 public:
  explicit ComputeDtypeScope(std::span<const at::Tensor> parameters);

  bool empty() const { return groups_.empty(); }
  bool switches_dtype() const;  ///< whether any of them has a policy that changes its dtype
  void enter();
  void leave();
  /// After unshard(): the parameters report their dtype at rest again, unless a module computes.
  void rest() const;
  /// Makes the next backward that reaches one of these forward outputs switch to the compute dtype
  /// before it touches any parameter: recomputed code may read a dtype first. No effect where no
  /// dtype changes. While ranks may use different parameters (set_reduce_unused_parameters), that
  /// backward waits at its end for those of the other ranks, also if it uses no parameter.
  void watch(std::span<const at::Tensor> outputs) const;

 private:
  std::vector<std::weak_ptr<ParamGroup>> groups_;
  uint64_t uses_before_ = 0;  // of parameters, before the last forward
};

}  // namespace fsdp

/// RAII: the parameters of a module and of its submodules report their compute dtype. May be
/// nested. No effect on parameters without a policy.
class TESSERA_API ComputeDtypeGuard {
 public:
  explicit ComputeDtypeGuard(const torch::nn::Module& module);
  ~ComputeDtypeGuard() { scope_.leave(); }
  ComputeDtypeGuard(const ComputeDtypeGuard&) = delete;
  ComputeDtypeGuard& operator=(const ComputeDtypeGuard&) = delete;

 private:
  fsdp::ComputeDtypeScope scope_;
};

}  // namespace tessera
