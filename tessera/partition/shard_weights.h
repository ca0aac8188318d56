#pragma once

#include <cstdint>
#include <functional>

#include "tessera/partition/assignment.h"
#include "tessera/program/archive.h"

/// Weights, buffers and constants of one rank: cut while they are read from the mapped file of the
/// whole program, so that memory holds a buffer of a megabyte, never a tensor.
namespace tessera::partition {

/// Called with the bytes that were written since the last call.
using ByteProgress = std::function<void(uint64_t bytes)>;

/// Names the records of the tensors in `local`, the program of a rank, and says how each is made.
/// Tensors that shared a record and are sharded alike go on sharing one (tied weights). The archive
/// must outlive what is returned.
program::SaveOptions shard_weights(program::ExportedProgram& local,
                                   const program::ExportedProgram& program,
                                   const program::Archive& archive, const Assignment& assignment,
                                   const DeviceMesh& mesh, const ByteProgress& progress);

/// The bytes that `shard_weights` writes for a program.
uint64_t weight_bytes(const program::SaveOptions& records);

}  // namespace tessera::partition
