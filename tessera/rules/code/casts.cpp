#include "tessera/base/text.h"
#include "tessera/rules/code/code_rules.h"
#include "tessera/rules/code/written.h"
#include "tessera/rules/expand.h"

/// Copies between element types. Which partial values pass through the cast:
///
///   sum, avg   if the cast is linear: not to bool, not from floating point to integer, not from a
///              short integer, whose sum wraps around, to a longer type
///   max, min   if it preserves the order: not to a narrower integer, not to bool
namespace tessera::rules {
namespace {

enum class Family { boolean, integer, real, complex };

Family family(DType dtype) {
  switch (dtype) {
    case DType::boolean:
      return Family::boolean;
    case DType::c32:
    case DType::c64:
    case DType::c128:
      return Family::complex;
    default:
      return can_be_partial(dtype, ReduceOp::avg) ? Family::real : Family::integer;
  }
}

bool survives(DType from, DType to, ReduceOp op) {
  if (from == to) return true;
  const Family f = family(from), t = family(to);
  if (f == Family::boolean || t == Family::boolean) return false;
  switch (op) {
    case ReduceOp::sum:
      return sum_survives(from, to);
    case ReduceOp::avg:
      return f == Family::real && t == Family::real;
    case ReduceOp::max:
    case ReduceOp::min:
      return (f == Family::real && t == Family::real) ||
             (f == Family::integer && t == Family::real);
    default:
      return false;
  }
}

std::string passes(DType from, DType to, std::string_view operands) {
  std::string out;
  for (auto op : {ReduceOp::sum, ReduceOp::avg, ReduceOp::max, ReduceOp::min, ReduceOp::product,
                  ReduceOp::band, ReduceOp::bor, ReduceOp::bxor}) {
    if (survives(from, to, op))
      out += join_text(out.empty() ? " ; pass " : ",", reduce_op_name(op));
  }
  return out.empty() ? out : join_text(out, " ", operands);
}

std::string to_copy(const OpCall& call) {
  const DType from = tensor_of(call, "self").dtype();
  const auto to = static_cast<DType>(call.int_or("dtype", static_cast<int64_t>(from)));
  return "* -> *" + passes(from, to, "0");
}

std::string copy(const OpCall& call) {
  return "*, * -> *" +
         passes(tensor_of(call, "src").dtype(), tensor_of(call, "self").dtype(), "0+1");
}

}  // namespace

std::vector<Rule> cast_rules() {
  return {written_rule("aten::_to_copy", "code: which partial values survive the cast", to_copy),
          written_rule("aten::copy", "code: which partial values survive the cast", copy)};
}

}  // namespace tessera::rules
