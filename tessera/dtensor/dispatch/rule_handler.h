#pragma once

#include <string_view>

#include "tessera/dtensor/dispatch/decision.h"

/// What rows of rules name as their handler (rules::Row::handler): an op on local tensors that is
/// more than the op itself. ops/rule_handlers.h has those of the library.
namespace tessera::dtensor {

/// The handler of that name; nullptr for none. It takes the local arguments from the stack and
/// leaves the local results.
RuleHandler rule_handler(std::string_view name);

/// Adds one; from now on rules offer rows of this name.
void set_rule_handler(std::string_view name, RuleHandler handler);

}  // namespace tessera::dtensor
