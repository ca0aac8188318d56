#pragma once

#include <filesystem>
#include <optional>
#include <string>

#include "cli/tensor_file.h"
#include "tessera/base/errors.h"
#include "tessera/interp/program.h"
#include "tessera/partition/manifest/manifest.h"

/// Runs programs from the command line: a `.pt2` in this process, the directory of a sharded
/// program on ranks that are processes of this host.
namespace tessera::cli {

/// The target on the command line: M.pt2, or a sharded program (a directory, or one file).
struct ProgramTarget {
  std::filesystem::path path;
  std::optional<partition::Manifest> manifest;  ///< of a sharded program
  int ranks = 1;

  /// `ranks`: as requested; absent: as many as the program needs.
  static ProgramTarget find(const std::filesystem::path& path, std::optional<int> ranks);
  /// The program, or that of any rank, for its description.
  program::ExportedProgram a_program() const;
  /// Checks the programs of all ranks of a sharded one as loading does; see check_program.
  void check_ranks() const;
  /// Compares the contents of all of its files with their checksums.
  void check_contents() const;
};

struct ProgramRun {
  NamedTensors outputs;
  double load_s = 0;
  double run_s = 0;  ///< of the last run
};

struct ProgramJob {
  ProgramTarget target;
  std::filesystem::path inputs;   ///< a safetensors file
  std::filesystem::path outputs;  ///< likewise, written by the run
  std::string device;             ///< "" as exported, "cpu", "cuda"
  int repeat = 1;
};

/// Runs the program `repeat` times and writes the results of the last run to the job's outputs
/// file. One rank runs in this process; several are started and awaited. If they fail, throws
/// ExitWith their code.
ProgramRun run_job(const ProgramJob& job);

/// The part of the job that a started rank runs. Rank 0 writes the outputs.
void run_as_rank(const ProgramJob& job);

/// A temporary directory for files shared with ranks; removed with its contents.
class ScratchDir {
 public:
  ScratchDir();
  ~ScratchDir();
  ScratchDir(const ScratchDir&) = delete;
  ScratchDir& operator=(const ScratchDir&) = delete;
  std::filesystem::path file(const std::string& name) const { return path_ / name; }

 private:
  std::filesystem::path path_;
};

}  // namespace tessera::cli
