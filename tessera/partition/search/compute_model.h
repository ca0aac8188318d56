#pragma once

#include <span>
#include <string>

#include "tessera/partition/graph/assignment.h"

namespace tessera::partition {

/// How long an op takes on one rank: the longer of its arithmetic at the peak rate and its bytes at
/// the memory's. Without it every plan would replicate everything, at no cost.
///
///   linear 2048x4096 by 4096x4096, bf16, sharded by 8    8.6e9 flops at 400e12: 21 us
struct ComputeModel {
  double flops_per_s = 400e12;
  double bytes_per_s = 3e12;

  /// A core of a CPU, or an accelerator for any other device.
  static ComputeModel of_device(const std::string& device);

  /// `share` is the busiest rank's part of the arithmetic, 1/8 where 8 ranks share it evenly.
  double seconds(const NodeCall& call, std::span<const Sharding> operands,
                 std::span<const Sharding> results, double share) const;
};

/// Multiplications and additions of the whole op.
double flops_of(const NodeCall& call, std::span<const Sharding> operands,
                std::span<const Sharding> results);

/// Bytes that the busiest rank holds.
double local_bytes(const Sharding& sharding);

}  // namespace tessera::partition
