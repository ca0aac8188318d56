#include "tessera/partition/partition.h"

#include "tessera/base/errors.h"
#include "tessera/partition/graph/replace_writes.h"
#include "tessera/partition/shard_weights.h"
#include "tessera/program/verify.h"

namespace tessera::partition {

PartitionedProgram::PartitionedProgram(std::shared_ptr<const program::Archive> archive,
                                       program::ExportedProgram program, Assignment assignment,
                                       RewriteOptions rewrite)
    : archive_(std::move(archive)),
      program_(std::move(program)),
      assignment_(std::move(assignment)),
      rewrite_(rewrite) {}

program::ExportedProgram PartitionedProgram::of_rank(int rank) const {
  require(mesh().coordinate_of(rank).has_value(), "rank ", rank, " is not in ", mesh());
  return program_of_rank(program_, assignment_, rank, rewrite_);
}

void PartitionedProgram::save_rank(int rank, const std::filesystem::path& file) const {
  program::ExportedProgram local = of_rank(rank);
  RecordNames names;
  const auto records = shard_weights(local, program_, *archive_, assignment_,
                                     mesh().with_own_rank(rank), nullptr, names);
  program::save(local, *archive_, file, records);
}

void PartitionedProgram::save(const std::filesystem::path& path, WriteOptions options) const {
  options.rewrite = rewrite_;
  write_sharded(*archive_, program_, assignment_, path, options);
}

PartitionedProgram partition(std::shared_ptr<const program::Archive> archive,
                             const DeviceMesh& mesh, const Plan& plan,
                             const PropagateOptions& options) {
  program::ExportedProgram program = archive->read_program();
  program::verify(program, archive->path());
  replace_writes(program);
  Assignment assignment = propagate(program, mesh, plan, options);
  return {std::move(archive),
          std::move(program),
          std::move(assignment),
          {.machine = options.machine.value_or(cost::default_machine(mesh.device()))}};
}

PartitionedProgram partition(const std::filesystem::path& file, const DeviceMesh& mesh,
                             const Plan& plan, const PropagateOptions& options) {
  return partition(program::Archive::open(file), mesh, plan, options);
}

}  // namespace tessera::partition
