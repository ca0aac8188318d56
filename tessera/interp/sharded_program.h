#pragma once

#include <filesystem>
#include <memory>

#include "tessera/base/api.h"
#include "tessera/comm/world.h"
#include "tessera/interp/program.h"
#include "tessera/partition/manifest/manifest.h"

namespace tessera {

/// One rank's part of a program that `tessera shard` wrote, as a directory or as one file, with the
/// process groups of its collectives.
///
///   // in every rank, started by `tessera launch -n 4`, torchrun, ...
///   ShardedProgram program = ShardedProgram::load("llama_tp4");
///   at::Tensor logits = program.run({tokens})[0].toTensor();     // the same on all ranks
///
/// Inputs and outputs are global: every rank passes the whole tensors and gets whole ones. Where
/// the program wants a part, that is sliced here; an output that ranks hold in parts is gathered.
/// To pass and get parts, use local().
///
/// All ranks load and run together, in the same order.
class TESSERA_API ShardedProgram {
 public:
  /// `world`: default comm::current_world(). Its size must be that of the mesh that the program was
  /// sharded for. `options.groups` are added to those of the manifest.
  static ShardedProgram load(const std::filesystem::path& path,
                             std::shared_ptr<comm::RankWorld> world = nullptr,
                             const ProgramOptions& options = {});

  Program::Values run(Program::Values inputs);
  Program::NamedValues run_named(const Program::NamedValues& inputs);

  const DeviceMesh& mesh() const { return mesh_; }
  const partition::Manifest& manifest() const { return manifest_; }
  Program& local() { return program_; }
  const Program& local() const { return program_; }

 private:
  ShardedProgram(partition::Manifest manifest, DeviceMesh mesh, Program program);

  /// By input or output: its place among the manifest's; absent for numbers.
  using Places = std::vector<std::optional<size_t>>;
  Program::Values slice(Program::Values inputs) const;
  Program::Values gather(Program::Values outputs) const;
  std::vector<int64_t> global_shape(const partition::ManifestTensor& tensor,
                                    const at::Tensor& local) const;

  partition::Manifest manifest_;
  DeviceMesh mesh_;
  Program program_;
  Places inputs_;
  Places outputs_;
};

}  // namespace tessera
