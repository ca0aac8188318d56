#pragma once

#include <memory>
#include <span>
#include <variant>
#include <vector>

#include "tessera/fsdp/collectives.h"

namespace torch::nn {
class Module;
}

namespace tessera::fsdp {

class ParamGroup;

/// The groups of a module's parameters, in their order.
std::vector<std::shared_ptr<ParamGroup>> groups_in(const torch::nn::Module& module);

}  // namespace tessera::fsdp

/// What a program may tell the groups of a module after fully_shard. All of it is about the groups
/// of the module and of the modules inside, is the same on all ranks, and holds from now on;
/// settings cannot change while a backward runs.
namespace tessera {

/// Gathers the module's groups now; they are let go as ever, or by reshard().
void unshard(torch::nn::Module& module);
void reshard(torch::nn::Module& module);

/// A gather under way. Nobody has to wait for it: whatever touches a parameter does.
class UnshardHandle {
 public:
  explicit UnshardHandle(std::span<const std::shared_ptr<fsdp::ParamGroup>> groups);
  /// The parameters are there when it returns, unless they were let go since. Once is enough.
  void wait();

 private:
  std::vector<std::weak_ptr<fsdp::ParamGroup>> groups_;
};
/// As unshard(), but only starts it.
UnshardHandle unshard_async(torch::nn::Module& module);

/// As FullyShardOptions::reshard_after_forward.
void set_reshard_after_forward(torch::nn::Module& module, std::variant<bool, int> reshard);
/// False: what backward gathered stays until it is used again or parameters change. Gathers of the
/// next forward are saved where several backwards come before the optimizer's step.
void set_reshard_after_backward(torch::nn::Module& module, bool reshard);

/// When the module's groups are used in forward (backward), those of these modules are gathered, in
/// place of the next of the order that was learned; none: nothing is. All stay until they are used,
/// so memory is as many groups as are named.
void set_modules_to_forward_prefetch(torch::nn::Module& module,
                                     std::span<torch::nn::Module* const> modules);
void set_modules_to_backward_prefetch(torch::nn::Module& module,
                                      std::span<torch::nn::Module* const> modules);

/// While false, backwards keep each rank's whole gradients and reduce nothing; the first backward
/// with true reduces their sum. For accumulation over several small batches. True also undoes
/// set_requires_all_reduce(false).
void set_requires_gradient_sync(torch::nn::Module& module, bool sync);
/// The same between replicas alone: while false, gradients are reduced over the shard axis, each
/// replica keeps its sum of them, and grad does not change. No effect without a replicate axis.
void set_requires_all_reduce(torch::nn::Module& module, bool all_reduce);

/// As FullyShardOptions::gradient_divide_factor; what is divided by before the sum stays.
void set_gradient_divide_factor(torch::nn::Module& module, double factor);

/// True: what a rank skips, parameters of a group or whole groups, counts as zeros in the mean of
/// gradients, if any rank used the group. For programs whose ranks use different layers, as experts
/// without tokens. While it is on for any group, the ranks agree on every gather of any group by a
/// small message before it (rank_agreement.h): nothing is prefetched or merged, and gradients are
/// reduced at the end of backward. Each rank must use at least one parameter in each backward.
/// After a forward without backward in which whole groups were skipped, call reshard(): until a
/// rank does so, or uses parameters again, others may wait for it.
void set_reduce_unused_parameters(torch::nn::Module& module, bool reduce);

/// From now on the module's groups send with these functions; empty ones are the library's.
void set_collectives(torch::nn::Module& module, const Collectives& collectives);

}  // namespace tessera
