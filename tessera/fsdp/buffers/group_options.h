#pragma once

#include <c10/core/ScalarType.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <variant>

#include "tessera/comm/group.h"
#include "tessera/fsdp/buffers/collectives.h"
#include "tessera/fsdp/buffers/reduction.h"

namespace tessera::fsdp {

/// FullyShardOptions as resolved for one group.
struct GroupOptions {
  bool reshard_after_forward = true;
  bool reshard_after_backward = true;
  /// The group among which backward gathers the shard kept after forward; nullptr: nothing is kept.
  std::shared_ptr<const comm::Group> smaller_group = nullptr;
  DivideBy divide_by = {};           ///< of the gradient reduction
  bool all_reduce_gradients = true;  ///< over replicas; false: each accumulates its own sum
  bool reduce_unused = false;        ///< parameters without a gradient count as zeros
  std::optional<at::ScalarType> param_dtype = std::nullopt;   ///< of gathered parameters
  std::optional<at::ScalarType> reduce_dtype = std::nullopt;  ///< of the gradient reduction
  /// Groups share a collective only if this is the same object.
  std::shared_ptr<const Collectives> collectives = with_defaults({});
  int64_t merge_bytes = 0;       ///< consecutive groups share collectives up to this; 0: never
  bool offload = false;          ///< shards are stored on the host
  bool pin_memory = true;        ///< page-locked, with offload
  const void* module = nullptr;  ///< that the parameters belong to

  /// As FullyShardOptions::reshard_after_forward.
  void set_reshard_after_forward(std::variant<bool, int> to, const DataMesh& mesh);
  void set_gradient_divide_factor(double factor);

  /// Whether groups with these options may share collectives.
  bool can_share_collectives(const GroupOptions& other) const {
    return reshard_after_forward == other.reshard_after_forward &&
           reshard_after_backward == other.reshard_after_backward &&
           all_reduce_gradients == other.all_reduce_gradients &&
           reduce_unused == other.reduce_unused && smaller_group == other.smaller_group &&
           divide_by == other.divide_by && param_dtype == other.param_dtype &&
           reduce_dtype == other.reduce_dtype && merge_bytes == other.merge_bytes &&
           collectives == other.collectives && offload == other.offload &&
           pin_memory == other.pin_memory;
  }
};

}  // namespace tessera::fsdp
