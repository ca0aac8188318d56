#pragma once

#include <functional>
#include <string>

#include "tessera/partition/plan.h"

namespace tessera::cli {

/// The value of --plan: "auto", or a file of JSON. Throws InvalidArgument for one that cannot be
/// read.
partition::Plan read_plan(const std::string& value);

/// Runs `work`; what a program, plan or mesh asks for that cannot be served is then an
/// InvalidArgument too, which ends the command with exit code 2.
void with_bad_input_errors(const std::function<void()>& work);

}  // namespace tessera::cli
