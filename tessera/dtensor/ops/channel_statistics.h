#pragma once

#include <ATen/core/Tensor.h>

#include "tessera/sharding/sharding.h"

/// Per-channel statistics of a batch norm input, [n, c, ...], whose batch and spatial dims may be
/// sharded: every rank computes those of its own elements, and two numbers per channel are reduced.
/// An axis that shards the channels needs no reduction.
///
///   dp=2,tp=2 : S0,S1 : 64x8x16x16    each rank has half of the batch of 4 channels;
///                                     a sum over dp of 2x4 numbers
namespace tessera::dtensor {

class ChannelLayout {
 public:
  /// A Partial `input` is reduced to shards first, see input().
  explicit ChannelLayout(const Sharding& input);

  /// The sharding of the input, its gradient and the normalized result; never Partial.
  const Sharding& input() const { return input_; }
  /// The sharding of a tensor with one number per channel.
  Sharding channels(at::ScalarType dtype) const;

  /// Number of elements of a channel: in total, and on this rank.
  double count() const { return count_; }
  double local_count() const { return local_count_; }
  /// Channels on this rank.
  int64_t local_channels() const { return input_.local_shape()[1]; }

  /// Whether other ranks have elements of this rank's channels.
  bool reduces() const { return reduces_; }
  /// The sum of numbers [k, local_channels()] over those ranks. May modify the argument.
  at::Tensor sum_over_ranks(at::Tensor numbers) const;

 private:
  Sharding input_;
  double count_ = 0;
  double local_count_ = 0;
  bool reduces_ = false;
};

struct ChannelStatistics {
  at::Tensor mean;  ///< [local_channels()], float64
  at::Tensor var;   ///< the same, population variance
};

/// Statistics of an input with sharding layout.input(). One all_reduce. For float64 inputs another
/// one, of the means, precedes it, to avoid cancellation of squares of large means; for narrower
/// inputs float64 sums suffice.
ChannelStatistics channel_statistics(const ChannelLayout& layout, const at::Tensor& local);

}  // namespace tessera::dtensor
