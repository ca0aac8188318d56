#pragma once

#include <optional>
#include <string>

#include "tessera/partition/partition.h"
#include "tessera/partition/search/auto_plan.h"

namespace tessera::cli {

/// What --plan, --mesh and --memory of a verb say.
struct ShardingOptions {
  std::string program;
  std::string mesh;
  std::string plan = "auto";
  std::string memory;  ///< empty: no limit
};

struct ChosenShardings {
  partition::PartitionedProgram program;
  /// What speaks for the choice, if no plan was given.
  std::optional<partition::AutoPlan> found;
};

ChosenShardings choose_shardings(const ShardingOptions& options);

/// "64M", "1.5GiB", "2000000", or "30%" of `whole`; units count by 1024. Throws InvalidArgument.
int64_t parse_memory(const std::string& text, int64_t whole);

}  // namespace tessera::cli
