#pragma once

/// What the library adds to ops that are not simply the same op on local tensors.
namespace tessera::dtensor {

/// Installs everything below and the policy; called once, after registration.
void install_ops();

// Kernels of rows (dispatch/decide/row_kernel.h), each in the file of its name.
void install_amp();           ///< `unscale`: gradient scaling
void install_arg_extremes();  ///< `extreme`: argmax, argmin, max.dim, min.dim along a sharded dim
void install_batch_norm();    ///< in training, over a sharded batch or spatial dims
void install_class_losses();  ///< log_softmax, logsumexp along a sharded dim
void install_convolution();   ///< over sharded spatial dims
void install_cumsum();        ///< along a sharded dim
void install_equal();         ///< of parts
void install_foreach_norm();  ///< norms of many tensors in one message
void install_masked_rows();   ///< `mask`: look-ups along a sharded dim
void install_moments();       ///< variances over a sharded dim
void install_nll_loss();      ///< `nll`: over sharded rows or classes
void install_pooling();       ///< over sharded spatial dims
void install_reductions();    ///< `norm`: over a sharded dim
void install_topk();          ///< along a sharded dim

// Ops that are made of other ops (dispatch/op/op_entry.h, Decomposition).
void install_in_place_views();  ///< t_, transpose_, squeeze_, unsqueeze_, resize_
void install_random();          ///< values by global index
void install_whole_ops();       ///< allclose, dist, instance_norm, as_strided, set_

}  // namespace tessera::dtensor
