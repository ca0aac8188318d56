#include "tessera/fsdp/buffers/group_options.h"

#include "tessera/base/errors.h"

namespace tessera::fsdp {

void GroupOptions::set_reshard_after_forward(std::variant<bool, int> to, const DataMesh& mesh) {
  smaller_group = nullptr;
  if (const bool* reshard = std::get_if<bool>(&to)) {
    reshard_after_forward = *reshard;
    return;
  }
  const int ranks = std::get<int>(to);
  const int all = mesh.shard_size();
  require(ranks >= 1 && ranks <= all && all % ranks == 0, "fully_shard: reshard_after_forward is ",
          ranks, ", which does not divide the ", all, " ranks that parameters are sharded over");
  reshard_after_forward = ranks > 1 || all == 1;
  if (ranks > 1 && ranks < all) smaller_group = mesh.smaller_group(ranks);
}

/// The divisor before the sum does not change: reductions may be in flight.
void GroupOptions::set_gradient_divide_factor(double factor) {
  require(factor > 0, "fully_shard: gradient_divide_factor is ", factor);
  divide_by.after = factor / divide_by.before;
}

}  // namespace tessera::fsdp
