#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/intrusive_ptr.h>

#include <functional>
#include <memory>
#include <string_view>
#include <torch/csrc/distributed/c10d/Work.hpp>
#include <vector>

#include "tessera/comm/group.h"

/// What the groups of fully_shard send, as functions that a program may put its own in place of: a
/// compressed all_gather, buffers that the network card knows, gradients summed over another axis.
///
///   Collectives own;
///   own.reduce_scatter = [](auto& out, auto& in, const comm::Group& group, bool async) {
///     ...
///     return default_reduce_scatter(out, in, group, async);   // nullptr if all is done already
///   };
///   set_collectives(*model, own);
///
/// The tensors of a call are flat and in pairs, of any number: all parameters of a group travel in
/// one call. Every rank must replace the same ones, and whatever runs must end on all.
namespace tessera {

using Tensors = std::vector<at::Tensor>;
using WorkPtr = c10::intrusive_ptr<c10d::Work>;

struct Collectives {
  /// outputs[i] becomes the ranks' inputs[i] one after another. Neither may be touched until the
  /// Work is waited for; nullptr says that all is done. With `async` it should not wait itself.
  std::function<WorkPtr(Tensors& outputs, Tensors& inputs, const comm::Group& group, bool async)>
      all_gather = {};
  /// outputs[i] becomes my part of the sum of the ranks' inputs[i].
  std::function<WorkPtr(Tensors& outputs, Tensors& inputs, const comm::Group& group, bool async)>
      reduce_scatter = {};
  /// Makes each tensor the sum over the group, the replicas of a mesh of two axes. With a mesh of
  /// one axis it is called too, with nullptr: what it adds there is its own matter. Called on each
  /// rank once for each reduce_scatter, after it.
  std::function<WorkPtr(Tensors& tensors, const comm::Group* replicas, bool async)> all_reduce = {};
  /// Memory that parameters are gathered into, and gradients reduced from and into, as bytes.
  std::function<at::Tensor(int64_t bytes, c10::Device device)> allocate = {};
};

/// What runs where a function is empty.
WorkPtr default_all_gather(Tensors& outputs, Tensors& inputs, const comm::Group& group, bool async);
WorkPtr default_reduce_scatter(Tensors& outputs, Tensors& inputs, const comm::Group& group,
                               bool async);
WorkPtr default_all_reduce(Tensors& tensors, const comm::Group* replicas, bool async);
at::Tensor default_allocate(int64_t bytes, c10::Device device);

}  // namespace tessera

namespace tessera::fsdp {

/// What asks for them, to recorders (comm::CallSite::op).
inline constexpr std::string_view kSite = "fully_shard";

/// The functions that a program gave, and ours for the rest. Of none given always the same object.
std::shared_ptr<const Collectives> with_defaults(const Collectives& given);

}  // namespace tessera::fsdp
