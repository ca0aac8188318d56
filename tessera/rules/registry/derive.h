#pragma once

#include <functional>
#include <optional>
#include <string>
#include <string_view>

#include "tessera/rules/rule.h"

/// Rules derived from the rule of a related op:
///
///   add_.Tensor           add.Tensor, the first operand keeps its placement
///   mm.out, sum.IntList_out   mm, sum.dim_IntList; the out operands are placed as the results
///   permute_copy          permute
///   _foreach_add.List     add.Tensor for every element, independently
namespace tessera::rules {

using FindRule = std::function<const Rule*(std::string_view)>;

/// "aten::add_.Tensor": yes; "aten::__and__.Scalar": no.
bool is_in_place(std::string_view op);
/// "aten::add.Tensor" of "aten::add_.Tensor"; there may be no such op.
std::string functional_name(std::string_view op);

std::optional<Rule> derive(std::string_view op, const FindRule& find);

}  // namespace tessera::rules
