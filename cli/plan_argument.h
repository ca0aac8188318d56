#pragma once

#include <string>

#include "tessera/partition/plan_file/plan.h"

namespace tessera::cli {

/// The value of --plan: "auto", or a JSON file. Throws InvalidArgument if it cannot be read.
partition::Plan read_plan(const std::string& value);

}  // namespace tessera::cli
