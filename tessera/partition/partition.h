#pragma once

#include <filesystem>
#include <memory>

#include "tessera/base/api.h"
#include "tessera/partition/search/propagate.h"
#include "tessera/partition/write_sharded.h"
#include "tessera/program/archive.h"

/// The tensor-parallel transformation of an exported program: one program in, a program for each
/// rank of a mesh out.
///
///   auto program = partition("llama.pt2", DeviceMesh::parse("tp=4"),
///                            Plan::parse(R"({"modules": {"layers.*.mlp.up": "colwise",
///                                                        "layers.*.mlp.down": "rowwise"}})",
///                                        "plan"));
///   program.assignment().totals.collectives        // what it costs, before anything is written
///   program.save("llama_tp4");                     // rank_0.pt2 ... rank_3.pt2, manifest.json
///
/// Passes, each a header that can be read by itself:
///
///   graph/replace_writes.h           in-place ops whose writes are not read become functional ones
///   graph/written_values.h           what is written: stays whole, or is state that may be sharded
///   graph/random_ops.h               refuses ops whose numbers would differ between ranks
///   plan_file/plan.h                 what the caller demands: styles by module, placements by name
///   search/propagate.h               a sharding for every value, at the least total cost
///   search/auto_plan.h               the same without a plan, with reasons and the next best
///   search/merge_moves.h             one redistribution for all readers of a value
///   rewrite/insert_communication.h   when redistributions start and are awaited
///   rewrite/lower_plan.h             the library's redistribution plans as functional collectives
///   rewrite/localise.h               sizes in views, factories, slices
///   rewrite/masked_look_up.h         look-ups in a table of which a rank holds some rows
///   rewrite/relax_views.h            views of tensors that have other strides than at export
///   rewrite/local_symbols.h          symbols and expressions of sharded dims
///   shard_weights.h                  weights sharded while they are read
///   write_sharded.h                  files of ranks and the manifest
///
/// The files run in Python (torch.export.load, the default process group) and in
/// interp/sharded_program.h without it.
namespace tessera::partition {

class TESSERA_API PartitionedProgram {
 public:
  PartitionedProgram(std::shared_ptr<const program::Archive> archive,
                     program::ExportedProgram program, Assignment assignment,
                     RewriteOptions rewrite);

  /// The whole program.
  const program::ExportedProgram& program() const { return program_; }
  const Assignment& assignment() const { return assignment_; }
  const DeviceMesh& mesh() const { return assignment_.mesh; }

  /// The program of one rank. Its weights are described, not made.
  program::ExportedProgram of_rank(int rank) const;
  /// Writes the program of one rank, with its weights, as one `.pt2`.
  void save_rank(int rank, const std::filesystem::path& file) const;
  /// Writes the programs of all ranks; `options.rewrite` is ignored. See write_sharded.
  void save(const std::filesystem::path& path, WriteOptions options = {}) const;

 private:
  std::shared_ptr<const program::Archive> archive_;
  program::ExportedProgram program_;
  Assignment assignment_;
  RewriteOptions rewrite_;
};

/// Reads and verifies the program, and chooses shardings. Throws InvalidArgument for a file that
/// is not a sound program and for a plan that cannot be honoured, with the node and the reason.
PartitionedProgram partition(std::shared_ptr<const program::Archive> archive,
                             const DeviceMesh& mesh, const Plan& plan,
                             const PropagateOptions& options = {});
TESSERA_API PartitionedProgram partition(const std::filesystem::path& file, const DeviceMesh& mesh,
                                         const Plan& plan, const PropagateOptions& options = {});

}  // namespace tessera::partition
