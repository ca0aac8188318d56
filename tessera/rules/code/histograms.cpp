#include <algorithm>
#include <cmath>

#include "tessera/rules/code/code_rules.h"
#include "tessera/rules/code/written.h"
#include "tessera/rules/expand.h"

/// histc(self, bins, min, max) counts the elements between two numbers, so that ranks count their
/// parts. If both are the same number of the tensor's type, it counts between the least and the
/// largest element instead, which no rank knows of the others' parts.
namespace tessera::rules {
namespace {

/// Whether the two are different numbers of a type. Close ones of a narrow type count as the same.
bool differ(double a, double b, DType dtype) {
  if (!can_be_partial(dtype, ReduceOp::avg)) return std::trunc(a) != std::trunc(b);
  if (dtype == DType::f64) return a != b;
  return std::abs(a - b) > 0.01 * std::max(std::abs(a), std::abs(b));
}

double number_of(const OpCall& call, std::string_view name) {
  const Arg* arg = call.find(name);
  if (arg == nullptr) return 0;
  if (const auto* whole = std::get_if<int64_t>(arg)) return static_cast<double>(*whole);
  const auto* number = std::get_if<Number>(arg);
  return number == nullptr ? 0 : number->to_double();
}

std::string histc(const OpCall& call) {
  const DType dtype = tensor_of(call, "self").dtype();
  const bool has_range = differ(number_of(call, "min"), number_of(call, "max"), dtype);
  return has_range ? "* -> B" : "* -> B ; whole *";
}

}  // namespace

std::vector<Rule> histogram_rules() {
  return {written_rule("aten::histc", "code: parts are counted if a range is given", histc)};
}

}  // namespace tessera::rules
