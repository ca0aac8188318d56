#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "tessera/program/archive.h"

namespace tessera::cli {

/// A description of an exported program, without running it.
struct ProgramSummary {
  struct Tensor {
    std::string name;
    std::string type;  ///< "f32 2xs77x16", "an int"
  };
  struct Weight {
    std::string name;
    std::string kind;  ///< "parameter", "buffer", "constant"
    std::string type;
    uint64_t bytes = 0;   ///< 0 if it shares the bytes of an earlier one
    std::string tied_to;  ///< that one
  };
  struct Op {
    std::string name;  ///< "aten::linear"
    int count = 0;
  };

  std::string torch_version;
  std::string form;  ///< "as exported" or "after run_decompositions"
  std::vector<Tensor> inputs;
  std::vector<Tensor> outputs;
  std::vector<Tensor> symbols;  ///< with their ranges
  std::vector<Weight> weights;
  std::vector<Op> ops;                        ///< most frequent first
  std::map<std::string, int> collectives_of;  ///< by group name
  int nodes = 0;
  int64_t parameters = 0;  ///< elements, tied ones counted once
  uint64_t weight_bytes = 0;
  uint64_t file_bytes = 0;
  /// "" or why this library cannot run it.
  std::string not_runnable;
};

/// Checks a program as loading does: throws InvalidArgument for an invalid one, NotSupported for
/// one that this library cannot run. `model`: its name in the archive.
void check_program(const program::ExportedProgram& program, const std::string& path,
                   const std::string& model = "model");

/// Throws InvalidArgument for an invalid program.
ProgramSummary summarize(const program::Archive& archive);

}  // namespace tessera::cli
