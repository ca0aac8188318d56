#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>

#include "tessera/checkpoint/stored/stored_state.h"

/// Parts of stored tensors, however their chunks lie: for programs that go through tensors larger
/// than memory piece by piece.
namespace tessera::checkpoint {

/// What two boxes share; nullopt if nothing.
std::optional<Box> intersection(const Box& a, const Box& b);

/// The element type: of the metadata, or of the first stored chunk where that has none.
DType dtype_of(StoredState& stored, const std::string& name, const dcp::TensorEntry& entry);

/// The elements of a box as a new contiguous tensor, put together from all chunks that overlap with
/// it. The chunks must cover it: see dcp::check_chunks. Throws InvalidArgument for a chunk of
/// another type than `dtype`.
at::Tensor read_box(StoredState& stored, const std::string& name, const dcp::TensorEntry& entry,
                    DType dtype, const Box& box);
/// The same into `target`, which has the shape of the box.
void read_box_into(const at::Tensor& target, StoredState& stored, const std::string& name,
                   const dcp::TensorEntry& entry, const Box& box);

/// Splits a box into pieces of at most `most` elements that follow each other in row-major order,
/// and calls `visit` with each: a 3x4 box with most = 8 is rows [0,2) and [2,3).
void for_each_piece(const Box& box, int64_t most, const std::function<void(const Box&)>& visit);

/// Calls the sink with the bytes of a box in row-major order. `buffer` is made where it is missing
/// or too small, of at most kBounce bytes, and serves the next call: allocated for each box, freed
/// ones would stay in the heap.
void visit_box_bytes(StoredState& stored, const std::string& name, const dcp::TensorEntry& entry,
                     DType dtype, const Box& box, at::Tensor& buffer,
                     const std::function<void(std::span<const std::byte>)>& sink);

}  // namespace tessera::checkpoint
