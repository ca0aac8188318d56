#pragma once

/// Handlers for ops that are not simply the same op on local tensors.
namespace tessera::dtensor {

/// Installs every handler and local kernel of the library; called once, after registration.
void install_handlers();

// Its parts, each in the file of its name.
void install_arg_extremes();          ///< argmax, argmin, max.dim, min.dim
void install_topk();                  ///< along a sharded dim
void install_cumsum();                ///< along a sharded dim
void install_class_losses();          ///< log_softmax, nll_loss, logsumexp over sharded classes
void install_foreach_norm();          ///< norms of many tensors in one message
void install_in_place_views();        ///< t_, transpose_, squeeze_, unsqueeze_, resize_
void install_convolution_handlers();  ///< over sharded spatial dims
void install_pooling_handlers();      ///< over sharded spatial dims
void install_batch_norm_handlers();   ///< in training, over a sharded batch or spatial dims
void install_amp_handlers();          ///< gradient scaling

}  // namespace tessera::dtensor
