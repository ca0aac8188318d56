#pragma once

#include <ATen/core/Tensor.h>

#include "tessera/dtensor/dispatch/op_entry.h"
#include "tessera/sharding/sharding.h"

/// Statistics of each channel of an input of batch norm, [n, c, ...], whose batch and spatial dims
/// may be cut: every rank computes those of its own elements, and two numbers a channel are
/// reduced. The ranks of an axis that cuts the channels have channels of their own.
///
///   dp=2,tp=2 : S0,S1 : 64x8x16x16    each rank has half of the batch of 4 channels;
///                                     a sum over dp of 2x4 numbers
namespace tessera::dtensor {

class ChannelLayout {
 public:
  /// `input` may be Partial somewhere: it is then reduced to shards, see input().
  explicit ChannelLayout(const Sharding& input);

  /// How the input, its gradient and the result of the norm are placed; never Partial.
  const Sharding& input() const { return input_; }
  /// How a tensor of one number a channel is placed.
  Sharding channels(at::ScalarType dtype) const;

  /// Elements of a channel: on all ranks, and on this one.
  double count() const { return count_; }
  double local_count() const { return local_count_; }
  /// Channels on this rank.
  int64_t local_channels() const { return input_.local_shape()[1]; }

  /// True if other ranks have elements of this rank's channels.
  bool reduces() const { return reduces_; }
  /// Sum over those ranks of numbers [k, local_channels()]. Gives the argument up.
  at::Tensor sum_over_ranks(const OpEntry& entry, at::Tensor numbers) const;

 private:
  Sharding input_;
  double count_ = 0;
  double local_count_ = 0;
  bool reduces_ = false;
};

struct ChannelStatistics {
  at::Tensor mean;  ///< [local_channels()], float64
  at::Tensor var;   ///< the same, of the population
};

/// Of this rank's part of an input that is placed as layout.input(). One all_reduce; of float64
/// inputs another one before it, of the means, so that squares of large means do not cancel: for
/// narrower inputs the sums in float64 see to that.
ChannelStatistics channel_statistics(const OpEntry& entry, const ChannelLayout& layout,
                                     const at::Tensor& local);

}  // namespace tessera::dtensor
