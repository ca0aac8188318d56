#pragma once

#include <string>
#include <vector>

#include "tessera/cost/machine.h"
#include "tessera/partition/graph/assignment.h"

/// What a sharded program does, node by node, and where its communication comes from:
///
///   node        op                 runs as                  result            compute
///   linear      aten::linear       R, S0, S0 -> S2          f32 2x8x96  S2    0.4 us
///   gelu        aten::gelu         S2 -> S2                 f32 2x8x96  S2    0.1 us
///   linear_1    aten::linear       S2, S1 -> P(sum)         f32 2x8x24  P(sum)
///   add         aten::add.Tensor   R, R -> R                f32 2x8x24  R
///     linear_1: all_reduce over tp  P(sum) -> R     3.0 KiB, 12 us
namespace tessera::partition {

/// A step of a redistribution.
struct ExplainedStep {
  std::string value;
  std::string move;  ///< "all_reduce"
  std::string axes;  ///< "tp", "dp+tp"
  std::string from, to;
  int64_t bytes = 0;
  double seconds = 0;
  bool communicates = false;
};

struct ExplainedNode {
  std::string name;  ///< empty: the outputs of the program
  std::string op;
  std::string module;  ///< "layers.0.mlp.up", if the program says
  std::string row;     ///< "S2 | S1 -> P(sum)"
  std::string result;  ///< "f32 2x8x24 P(sum)"
  std::string why_whole;
  double compute_seconds = 0;
  std::vector<ExplainedStep> before;  ///< what is moved for it
};

struct ExplainedWeight {
  std::string name;
  std::string type;        ///< "f32 96x24"
  std::string placements;  ///< "S0"
  int64_t local_bytes = 0;
};

struct ProgramExplanation {
  std::string source;
  std::string mesh;
  std::vector<ExplainedWeight> weights;
  std::vector<ExplainedNode> nodes;
  Totals totals;
  std::vector<std::string> must_divide;  ///< "s0 must be a multiple of 2"

  /// Collectives by kind, "all_reduce 4, all_gather 1"; "none".
  std::string collectives_text() const;
  std::string to_text() const;
  std::string to_json() const;
  /// One page without references to other files.
  std::string to_html() const;
};

ProgramExplanation explain_program(const program::ExportedProgram& program,
                                   const Assignment& assignment, const std::string& source,
                                   const cost::Machine& machine);

}  // namespace tessera::partition
