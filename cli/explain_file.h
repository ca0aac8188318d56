#pragma once

#include <string>

#include "cli/choose_shardings.h"

namespace tessera::cli {

struct ExplainFileOptions {
  ShardingOptions choose;
  std::string html;  ///< a file to write, or empty
  bool json = false;
};

/// tessera explain M.pt2 --mesh tp=8: the decision for each node of the sharded program.
void explain_file(const ExplainFileOptions& options);

/// Whether `word` is a file rather than the name of an op.
bool is_program_file(const std::string& word);

}  // namespace tessera::cli
