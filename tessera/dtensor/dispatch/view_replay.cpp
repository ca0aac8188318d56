#include "tessera/dtensor/dispatch/view_replay.h"

#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/functions/tensor.h>
#include <torch/csrc/autograd/variable.h>

#include "tessera/base/errors.h"

namespace tessera::dtensor {

bool has_view_function(const at::Tensor& view) {
  const auto* meta = torch::autograd::impl::get_view_autograd_meta(view);
  return meta != nullptr && meta->has_bw_view() && meta->get_backward_view().has_view_fn();
}

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
