#pragma once

#include <ATen/core/Tensor.h>

#include <span>
#include <string>
#include <vector>

#include "tessera/base/api.h"
#include "tessera/sharding/boxes.h"

/// The three questions that a checkpoint asks of a tensor, sharded in any placement but Partial or
/// plain. Nothing is sent and nothing is gathered; a parameter of fully_shard answers with its
/// shards.
///
///   dp=2 : S0 : 5x6, rank 1                write_items   rows [3,5)
///   dp=2 : R  : 5x6                        write_items   all of it, on one of the two ranks
///   dp=2 : SS0(2) : 8x3, rank 1            chunk_list    rows [2,4) and rows [6,8)
///                                          tensor_shard  at {6,0}: the last two local rows
namespace tessera {

/// Which boxes of the tensor this rank writes. What several ranks hold is written by one of them;
/// the name decides by which, so that many tensors are spread evenly. (`save` weighs a whole state
/// instead, which is exact.)
TESSERA_API std::vector<Box> write_items(const std::string& name, const at::Tensor& tensor);

/// Every box that this rank holds, in the order of its local tensor; none on ranks outside of the
/// mesh. A plain tensor is one box.
TESSERA_API std::vector<Box> chunk_list(const at::Tensor& tensor);

/// This rank's memory of the held box that begins at `offset`: a view, without gradient. Throws
/// InvalidArgument if no box does.
TESSERA_API at::Tensor tensor_shard(const at::Tensor& tensor, std::span<const int64_t> offset);

/// This rank's memory of any box inside a held one.
TESSERA_API at::Tensor tensor_box(const at::Tensor& tensor, const Box& box);

}  // namespace tessera

namespace tessera::checkpoint {

/// The tensor as it rests: an ordinary sharded or plain tensor without gradient that shares its
/// memory.
TESSERA_API at::Tensor at_rest(const at::Tensor& tensor);

/// To be called before memory that tensor_box gave is written to.
TESSERA_API void about_to_change(const at::Tensor& tensor);

}  // namespace tessera::checkpoint
