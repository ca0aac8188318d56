#include "tessera/dtensor/dispatch/view_replay.h"

#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/functions/tensor.h>

#include "tessera/base/errors.h"

namespace tessera::dtensor {

void refuse_view_by_strides() {
  const auto node = torch::autograd::get_current_node();
  if (node == nullptr) return;
  const auto* write = dynamic_cast<const torch::autograd::CopySlices*>(&*node);
  if (write == nullptr || write->view_fn != nullptr) return;
  throw NotSupported(
      "the gradient of a write to a view that was taken before its base became sharded: the view "
      "is known by strides alone, which a sharded tensor does not have; take the view after the "
      "base has been distributed");
}

}  // namespace tessera::dtensor
