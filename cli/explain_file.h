#pragma once

#include <string>

#include "cli/choose_shardings.h"

namespace tessera::cli {

struct ExplainFileOptions {
  ShardingOptions choose;
  std::string html;  ///< a file to write, or empty
  bool json = false;
};

/// tessera explain M.pt2 --mesh tp=8: what each node of the sharded program would do.
void explain_file(const ExplainFileOptions& options);

/// True for what is meant as a file and not as the name of an op.
bool is_program_file(const std::string& word);

}  // namespace tessera::cli
