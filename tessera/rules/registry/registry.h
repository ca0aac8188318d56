#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "tessera/rules/rule.h"

/// Which rule an op has: a line of a table, code, a form that derives from another op, or what a
/// program registered.
namespace tessera::rules {

/// The rule of an op, nullptr if it has none. Looks for the op itself, then for what it derives
/// from: in-place and out= forms from the functional one, `_copy` forms from the view, foreach
/// forms from the element-wise op.
const Rule* find_rule(std::string_view op);

/// Adds or replaces a rule. The notation is that of docs/rule_notation.md.
void register_rule(std::string_view op, std::string_view notation);
void register_rule(Rule rule);

/// All ops that have a rule of their own, sorted; forms that derive from them are not listed.
std::vector<std::string> ruled_ops();

}  // namespace tessera::rules
