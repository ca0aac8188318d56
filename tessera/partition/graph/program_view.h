#pragma once

#include <cstddef>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "tessera/partition/graph/assignment.h"
#include "tessera/partition/graph/written_values.h"

namespace tessera::partition {

/// A program as the choice of shardings needs it: calls with whole operands, which node makes and
/// which ones read a value, which values are weights, constants, or must stay whole.
class ProgramView {
 public:
  /// Refers to the program, which must outlive it.
  ProgramView(const program::ExportedProgram& program, const DeviceMesh& mesh);

  /// An operand of a node, or, if node is nodes(), an output of the graph.
  struct Reader {
    size_t node;
    size_t operand;
  };

  const program::ExportedProgram& program() const { return program_; }
  const program::Graph& graph() const { return program_.graph; }
  const DeviceMesh& mesh() const { return mesh_; }
  size_t nodes() const { return calls_.size(); }

  /// With whole operands.
  const NodeCall& call(size_t node) const { return *calls_[node]; }
  const rules::Rule* rule(size_t node) const { return rules_[node]; }
  /// A node that reads sizes and types of its operands, never their values.
  bool reads_metadata_only(size_t node) const { return metadata_only_[node]; }

  /// Replicated; undefined for what is not a tensor. Strides are row-major: those of a value are in
  /// the graph.
  const Sharding& whole(program::ValueId id) const { return whole_[id.index]; }
  std::span<const Sharding> whole() const { return whole_; }
  const std::vector<Reader>& readers(program::ValueId id) const { return readers_[id.index]; }
  std::string_view name(program::ValueId id) const { return graph().value(id).name; }

  enum class Source : uint8_t {
    node,      ///< depends on user inputs or state
    input,     ///< a user input
    weight,    ///< a parameter
    constant,  ///< a buffer or constant, or made of such and of numbers alone: stays whole
    derived,   ///< made of weights (and constants) alone
    state,     ///< a buffer that the program updates, see written_values.h
  };
  Source source(program::ValueId id) const { return source_[id.index]; }
  bool is_from_weights(program::ValueId id) const {
    return source(id) == Source::weight || source(id) == Source::derived;
  }
  /// Written in place, or shares memory with what is: a copy would miss the write.
  bool must_be_whole(program::ValueId id) const { return written_.whole_only[id.index]; }
  /// The operand is written by the node: it must be there as it is stored.
  bool is_written(size_t node, size_t operand) const { return operand == 0 && in_place_[node]; }
  /// The buffer that an output of the graph is the new content of.
  std::optional<program::ValueId> updated_buffer(size_t output) const;

  /// The graph inputs that are one tensor under several names (tied weights): the one that is read.
  program::ValueId tied(program::ValueId id) const;

  /// Whether a dim can be split into `ranks` equal parts for all values of its symbols; a dim that
  /// is a number may be split in any way.
  bool can_shard(program::ValueId id, int dim, int64_t ranks) const;
  bool is_symbolic(program::ValueId id, int dim) const;
  /// From now on the symbol counts as a multiple of `by`.
  void assume_multiple(const std::string& symbol, int64_t by);
  const std::map<std::string, int64_t>& assumed() const { return multiples_; }

 private:
  void add_nodes();
  void add_outputs();
  void tie_weights();
  void set_sources();

  const program::ExportedProgram& program_;
  DeviceMesh mesh_;
  std::vector<Sharding> whole_;
  std::vector<std::unique_ptr<NodeCall>> calls_;
  std::vector<const rules::Rule*> rules_;
  std::vector<bool> metadata_only_;
  std::vector<std::vector<Reader>> readers_;
  std::vector<Source> source_;
  std::vector<bool> in_place_;
  WrittenValues written_;
  std::map<uint32_t, program::ValueId> tied_;
  std::map<std::string, int64_t> multiples_;
};

}  // namespace tessera::partition
