#include "tessera/dtensor/ops/install.h"

#include "tessera/dtensor/dispatch/dispatch.h"
#include "tessera/dtensor/kernels/register.h"

namespace tessera::dtensor {

void install_ops() {
  install_amp();
  install_arg_extremes();
  install_batch_norm();
  install_class_losses();
  install_convolution();
  install_cumsum();
  install_equal();
  install_foreach_norm();
  install_masked_rows();
  install_moments();
  install_nll_loss();
  install_pooling();
  install_reductions();
  install_topk();
  install_in_place_views();
  install_random();
  install_whole_ops();
  install_policy();
}

namespace {
// Registered at load, so that sharded tensors have kernels whichever API is used first.
const bool kInstalled = (register_kernels(), install_ops(), true);
}  // namespace

}  // namespace tessera::dtensor
