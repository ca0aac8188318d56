#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "tessera/partition/graph/assignment.h"
#include "tessera/program/archive.h"

/// Weights, buffers and constants of one rank: sharded while they are read from the mapped file of
/// the whole program, so that memory holds a buffer of a megabyte, never a tensor.
namespace tessera::partition {

/// Called with the bytes that were written since the last call.
using ByteProgress = std::function<void(uint64_t bytes)>;

/// The records of one archive that is written: their names, and which parts of tensors they hold.
class RecordNames {
 public:
  struct Folder {
    std::set<std::string> taken;
    std::map<std::vector<std::string>, std::string> sharded;  // by tensor and part
  };
  Folder weights;
  Folder constants;
};

/// Names the records of the tensors in `local`, the program of a rank, and says how each is made.
/// Tensors that shared a record and are sharded alike go on sharing one (tied weights). The archive
/// must outlive what is returned.
///
/// `names` is of the archive that the program is written to. If that gets the programs of several
/// ranks, ranks that hold the same part of a tensor share its record: only what is not yet in
/// `names` is among the sharded records that are returned.
program::SaveOptions shard_weights(program::ExportedProgram& local,
                                   const program::ExportedProgram& program,
                                   const program::Archive& archive, const Assignment& assignment,
                                   const DeviceMesh& mesh, const ByteProgress& progress,
                                   RecordNames& names);

}  // namespace tessera::partition
