#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "tessera/base/api.h"
#include "tessera/rules/rule.h"

/// The rule of each op: from a table, from code, derived from another op, or registered by a
/// program.
namespace tessera::rules {

/// The rule of an op, or nullptr. Tries the op itself, then what it derives from: in-place and out=
/// variants from the functional one, `_copy` variants from the view, foreach variants from the
/// element-wise op.
TESSERA_API const Rule* find_rule(std::string_view op);

/// Adds or replaces a rule. For the notation see docs/rule_notation.md.
TESSERA_API void register_rule(std::string_view op, std::string_view notation);
TESSERA_API void register_rule(Rule rule);

/// All ops with a rule of their own, sorted; derived ones are not listed.
TESSERA_API std::vector<std::string> ruled_ops();

}  // namespace tessera::rules
