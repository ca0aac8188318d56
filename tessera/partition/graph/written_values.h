#pragma once

#include <map>
#include <vector>

#include "tessera/program/exported_program.h"

/// What a program writes to, and which of it may be sharded.
///
/// A write changes memory: a copy of it that is made for a reader in another sharding would miss
/// the write. So what is written stays whole, except for buffers (and tensors that no module
/// registered, which are constants of the program) that keep state from run to run, as the keys and
/// values of earlier tokens, and are written in a way that can be followed:
///
///   keys.index_copy_(2, position, k); attention(q, keys)     one name for each content: state
///   view = keys.view(...); keys.add_(k); view                the view sees the write: whole
///
/// Such a buffer is written as it is stored, never redistributed for the write (ChoiceNetwork).
namespace tessera::partition {

/// Nodes after an in-place op read its result, which is the same memory, instead of the tensor that
/// it wrote to: a value has one content from then on. Outputs of the graph likewise.
void read_results_of_writes(program::ExportedProgram& program);

struct WrittenValues {
  std::vector<bool> whole_only;  ///< by value: written, or shares memory with what is
  std::vector<bool> is_state;    ///< by value: buffers that are updated and may be sharded
  /// By index into Graph::outputs: the buffer that the output is the new content of.
  std::map<size_t, program::ValueId> updates;
};

/// `tied`: graph inputs that are one tensor under two names, by ValueId::index.
WrittenValues find_written(const program::ExportedProgram& program,
                           const std::map<uint32_t, program::ValueId>& tied);

}  // namespace tessera::partition
