#pragma once

#include <string_view>

#include "tessera/dtensor/dispatch/decision.h"

/// The handlers that rows of rules name (rules::Row::handler): operations on local tensors beyond
/// the op itself. Those of the library are in ops/rule_handlers.h.
namespace tessera::dtensor {

/// The handler of that name, or nullptr. It replaces the local arguments on the stack by the local
/// results.
RuleHandler rule_handler(std::string_view name);

/// Adds a handler; rules offer rows with this name from now on.
void set_rule_handler(std::string_view name, RuleHandler handler);

}  // namespace tessera::dtensor
