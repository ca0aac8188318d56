#pragma once

#include <memory>
#include <span>
#include <variant>
#include <vector>

#include "tessera/base/api.h"
#include "tessera/fsdp/buffers/collectives.h"

namespace torch::nn {
class Module;
}

namespace tessera::fsdp {

class ParamGroup;

/// The groups of a module's parameters, in creation order.
TESSERA_API std::vector<std::shared_ptr<ParamGroup>> groups_in(const torch::nn::Module& module);

}  // namespace tessera::fsdp

/// Runtime controls of fully_shard. Each call applies to the groups of the module and of its
/// submodules, must be made identically on all ranks, and takes effect from then on. Settings
/// cannot change while a backward runs.
namespace tessera {

/// Gathers the module's groups now. They are resharded after use as usual, or by reshard(). Until
/// then parameters report the dtype that they compute in (compute_dtype.h); ops on their shards, as
/// an optimizer's step, use the dtype at rest.
TESSERA_API void unshard(torch::nn::Module& module);
TESSERA_API void reshard(torch::nn::Module& module);

/// An asynchronous gather. Waiting is optional: any use of a parameter waits for it.
class TESSERA_API UnshardHandle {
 public:
  explicit UnshardHandle(std::span<const std::shared_ptr<fsdp::ParamGroup>> groups);
  /// Blocks until the parameters are gathered, unless they were resharded meanwhile. Idempotent.
  void wait();

 private:
  std::vector<std::weak_ptr<fsdp::ParamGroup>> groups_;
};
/// Asynchronous unshard().
TESSERA_API UnshardHandle unshard_async(torch::nn::Module& module);

/// As FullyShardOptions::reshard_after_forward.
TESSERA_API void set_reshard_after_forward(torch::nn::Module& module,
                                           std::variant<bool, int> reshard);
/// If false, what backward gathered is kept until it is used again or parameters change. Saves the
/// gathers of the next forward when several backwards precede an optimizer step.
TESSERA_API void set_reshard_after_backward(torch::nn::Module& module, bool reshard);

/// When the module's groups are used in forward (backward), gathers the groups of these modules
/// instead of the next one in the learned order; an empty list disables the prefetch. All of them
/// stay gathered until used, so peak memory grows with the number of modules named.
TESSERA_API void set_modules_to_forward_prefetch(torch::nn::Module& module,
                                                 std::span<torch::nn::Module* const> modules);
TESSERA_API void set_modules_to_backward_prefetch(torch::nn::Module& module,
                                                  std::span<torch::nn::Module* const> modules);

/// While false, backwards keep each rank's full gradients and reduce nothing; the first backward
/// with true reduces their sum. For gradient accumulation. True also undoes
/// set_requires_all_reduce(false).
TESSERA_API void set_requires_gradient_sync(torch::nn::Module& module, bool sync);
/// The same for replicas only: while false, gradients are reduced over the shard axis, each replica
/// accumulates them, and grad does not change. No effect without a replicate axis.
TESSERA_API void set_requires_all_reduce(torch::nn::Module& module, bool all_reduce);

/// As FullyShardOptions::gradient_divide_factor; the factor applied before the sum does not change.
TESSERA_API void set_gradient_divide_factor(torch::nn::Module& module, double factor);

/// If true, parameters or whole groups that a rank did not use count as zeros in the mean of
/// gradients, provided any rank used the group. For programs whose ranks use different layers, such
/// as experts without tokens. While it is on for any group, ranks agree on every gather of every
/// group by a small message before it (fsdp/order/rank_agreement.h): no prefetch, no merging, and
/// gradients are reduced at the end of backward. All ranks must take part in each backward: by
/// using a parameter, or by a backward through an output of a module that fully_shard(holder)
/// returned; `0 * p.sum()` of any parameter in the loss is enough. A rank that ran such a module
/// and skipped the backward is an error on all ranks at its next one (docs/fsdp.md, Gradients).
/// After a forward without a backward in which whole groups were skipped, call reshard(): other
/// ranks may block until this rank does so or uses parameters again.
TESSERA_API void set_reduce_unused_parameters(torch::nn::Module& module, bool reduce);

/// Installs these functions for the module's groups; empty ones mean the defaults.
TESSERA_API void set_collectives(torch::nn::Module& module, const Collectives& collectives);

}  // namespace tessera
