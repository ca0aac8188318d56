#pragma once

#include <functional>
#include <string>

#include "tessera/partition/plan_file/plan.h"

namespace tessera::cli {

/// The value of --plan: "auto", or a JSON file. Throws InvalidArgument if it cannot be read.
partition::Plan read_plan(const std::string& value);

/// Runs `work`, converting errors about unsupported programs, plans or meshes to InvalidArgument,
/// which ends the command with exit code 2.
void with_bad_input_errors(const std::function<void()>& work);

}  // namespace tessera::cli
