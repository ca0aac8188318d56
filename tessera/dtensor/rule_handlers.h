#pragma once

#include <string_view>

#include "tessera/dtensor/decision.h"
#include "tessera/dtensor/op_entry.h"

/// What rows of rules name as their handler (rules::Row::handler): an op on local tensors that is
/// more than the op itself.
namespace tessera::dtensor {

/// The handler of that name; nullptr for none. It takes the local arguments from the stack and
/// leaves the local results.
RuleHandler rule_handler(std::string_view name);

/// Tells the rules which handlers there are.
void enable_rule_handlers();

}  // namespace tessera::dtensor
