#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/intrusive_ptr.h>

#include <functional>
#include <memory>
#include <string_view>
#include <torch/csrc/distributed/c10d/Work.hpp>
#include <vector>

#include "tessera/base/api.h"
#include "tessera/comm/group.h"

/// Replaceable collectives of fully_shard. A program may install its own, for example a compressed
/// all_gather, network-registered buffers, or an additional sum of gradients over another axis.
///
///   Collectives own;
///   own.reduce_scatter = [](auto& out, auto& in, const comm::Group& group, bool async) {
///     ...
///     return default_reduce_scatter(out, in, group, async);   // nullptr if all is done already
///   };
///   set_collectives(*model, own);
///
/// The tensors of a call are flat and come in pairs, any number of them: one call carries all
/// parameters of a group. Every rank must replace the same functions, and each call must complete
/// on all ranks.
namespace tessera {

using Tensors = std::vector<at::Tensor>;
using WorkPtr = c10::intrusive_ptr<c10d::Work>;

struct TESSERA_API Collectives {
  /// outputs[i] becomes the concatenation of the ranks' inputs[i], in rank order. Neither may be
  /// accessed until the returned Work has been waited for; nullptr means already complete. With
  /// `async` the function should not block.
  std::function<WorkPtr(Tensors& outputs, Tensors& inputs, const comm::Group& group, bool async)>
      all_gather = {};
  /// outputs[i] becomes this rank's part of the sum of the ranks' inputs[i].
  std::function<WorkPtr(Tensors& outputs, Tensors& inputs, const comm::Group& group, bool async)>
      reduce_scatter = {};
  /// Sums each tensor in place over the replica group of a two-axis mesh. Called once per
  /// reduce_scatter, after it, on each rank. On a one-axis mesh it is also called, with nullptr, so
  /// that a custom function can add its own reduction.
  std::function<WorkPtr(Tensors& tensors, const comm::Group* replicas, bool async)> all_reduce = {};
  /// Allocates, in bytes, the buffers that parameters are gathered into and gradients reduced in.
  std::function<at::Tensor(int64_t bytes, c10::Device device)> allocate = {};
};

/// The default for each empty function.
TESSERA_API WorkPtr default_all_gather(Tensors& outputs, Tensors& inputs, const comm::Group& group,
                                       bool async);
TESSERA_API WorkPtr default_reduce_scatter(Tensors& outputs, Tensors& inputs,
                                           const comm::Group& group, bool async);
TESSERA_API WorkPtr default_all_reduce(Tensors& tensors, const comm::Group* replicas, bool async);
TESSERA_API at::Tensor default_allocate(int64_t bytes, c10::Device device);

}  // namespace tessera

namespace tessera::fsdp {

/// The name that recorders report as the origin of these collectives (comm::CallSite::op).
inline constexpr std::string_view kSite = "fully_shard";

/// The given functions, completed with the defaults. With none given, always returns the same
/// object.
TESSERA_API std::shared_ptr<const Collectives> with_defaults(const Collectives& given);

}  // namespace tessera::fsdp
