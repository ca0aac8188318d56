#include "tessera/interp/symbolic_op.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "tessera/base/errors.h"

namespace tessera::interp {
namespace {

using c10::IValue;

struct Row {
  std::string_view target;
  SymbolicOp op;
  int operands;
};

constexpr std::array<Row, 29> kRows = {{
    {"_operator.eq", SymbolicOp::eq, 2},
    {"_operator.ne", SymbolicOp::ne, 2},
    {"_operator.le", SymbolicOp::le, 2},
    {"_operator.ge", SymbolicOp::ge, 2},
    {"_operator.lt", SymbolicOp::lt, 2},
    {"_operator.gt", SymbolicOp::gt, 2},
    {"_operator.neg", SymbolicOp::neg, 1},
    {"_operator.pos", SymbolicOp::pos, 1},
    {"math.trunc", SymbolicOp::trunc, 1},
    {"torch.sym_not", SymbolicOp::logical_not, 1},
    {"_operator.mul", SymbolicOp::mul, 2},
    {"_operator.add", SymbolicOp::add, 2},
    {"_operator.sub", SymbolicOp::sub, 2},
    {"_operator.floordiv", SymbolicOp::floordiv, 2},
    {"_operator.mod", SymbolicOp::mod, 2},
    {"_operator.pow", SymbolicOp::pow, 2},
    {"torch.sym_int", SymbolicOp::to_int, 1},
    {"torch.sym_float", SymbolicOp::to_float, 1},
    {"torch.sym_ite", SymbolicOp::ite, 3},
    {"torch.sym_max", SymbolicOp::max, 2},
    {"torch.sym_min", SymbolicOp::min, 2},
    {"torch.sym_sqrt", SymbolicOp::sqrt, 1},
    {"torch._sym_sqrt", SymbolicOp::sqrt, 1},
    {"_operator.truediv", SymbolicOp::truediv, 2},
    {"_operator.and_", SymbolicOp::logical_and, 2},
    {"_operator.or_", SymbolicOp::logical_or, 2},
    {"_operator.lshift", SymbolicOp::lshift, 2},
    {"_operator.rshift", SymbolicOp::rshift, 2},
    {"_operator.not_", SymbolicOp::logical_not, 1},
}};

constexpr const char* kOverflow = "the result of arithmetic on sizes is beyond 64 bits";

/// By reference: the result is written while the arguments are evaluated.
int64_t checked(bool overflow, const int64_t& result) {
  require(!overflow, kOverflow);
  return result;
}

int64_t power(int64_t base, int64_t exponent) {
  int64_t out = 1;
  // |base| > 1 overflows after 63 steps, and the others do not change.
  if (base == 0 || base == 1) return exponent == 0 ? 1 : base;
  if (base == -1) return exponent % 2 == 0 ? 1 : -1;
  for (; exponent > 0; --exponent) {
    const bool overflow = __builtin_mul_overflow(out, base, &out);
    require(!overflow, kOverflow);
  }
  return out;
}

int64_t floor_divide(int64_t a, int64_t b) {
  require(b != 0, "arithmetic on sizes divides by zero");
  require(!(a == INT64_MIN && b == -1), kOverflow);
  return a / b - ((a % b != 0 && (a < 0) != (b < 0)) ? 1 : 0);
}

int64_t truncate(double x) {
  require(std::abs(x) < 9.2e18, kOverflow);
  return static_cast<int64_t>(x);
}

template <typename T>
IValue compare(SymbolicOp op, T a, T b) {
  switch (op) {
    case SymbolicOp::eq:
      return a == b;
    case SymbolicOp::ne:
      return a != b;
    case SymbolicOp::le:
      return a <= b;
    case SymbolicOp::ge:
      return a >= b;
    case SymbolicOp::lt:
      return a < b;
    default:
      return a > b;
  }
}

IValue on_ints(SymbolicOp op, int64_t a, int64_t b) {
  int64_t out = 0;
  switch (op) {
    case SymbolicOp::add:
      return checked(__builtin_add_overflow(a, b, &out), out);
    case SymbolicOp::sub:
      return checked(__builtin_sub_overflow(a, b, &out), out);
    case SymbolicOp::mul:
      return checked(__builtin_mul_overflow(a, b, &out), out);
    case SymbolicOp::floordiv:
      return floor_divide(a, b);
    case SymbolicOp::mod:
      return a - floor_divide(a, b) * b;
    case SymbolicOp::truediv:
      require(b != 0, "arithmetic on sizes divides by zero");
      return static_cast<double>(a) / static_cast<double>(b);
    case SymbolicOp::pow:
      if (b < 0) return std::pow(static_cast<double>(a), static_cast<double>(b));
      return power(a, b);
    case SymbolicOp::max:
      return std::max(a, b);
    case SymbolicOp::min:
      return std::min(a, b);
    case SymbolicOp::logical_and:
      return a & b;
    case SymbolicOp::logical_or:
      return a | b;
    case SymbolicOp::lshift:
      require(b >= 0 && b < 63 && std::abs(a) <= (INT64_MAX >> b), kOverflow);
      return a * (int64_t{1} << b);
    case SymbolicOp::rshift:
      require(b >= 0, "a shift by a negative number");
      return a >> std::min<int64_t>(b, 63);
    default:
      return compare(op, a, b);
  }
}

IValue on_floats(SymbolicOp op, double a, double b) {
  switch (op) {
    case SymbolicOp::add:
      return a + b;
    case SymbolicOp::sub:
      return a - b;
    case SymbolicOp::mul:
      return a * b;
    case SymbolicOp::truediv:
      require(b != 0, "arithmetic on sizes divides by zero");
      return a / b;
    case SymbolicOp::floordiv:
      require(b != 0, "arithmetic on sizes divides by zero");
      return std::floor(a / b);
    case SymbolicOp::mod:
      require(b != 0, "arithmetic on sizes divides by zero");
      return a - std::floor(a / b) * b;
    case SymbolicOp::pow:
      return std::pow(a, b);
    case SymbolicOp::max:
      return std::max(a, b);
    case SymbolicOp::min:
      return std::min(a, b);
    case SymbolicOp::logical_and:
    case SymbolicOp::logical_or:
    case SymbolicOp::lshift:
    case SymbolicOp::rshift:
      throw InvalidArgument("an operation on bits of a float");
    default:
      return compare(op, a, b);
  }
}

double as_double(const IValue& value) {
  if (value.isInt()) return static_cast<double>(value.toInt());
  if (value.isBool()) return value.toBool() ? 1 : 0;
  return value.toDouble();
}

int64_t as_int(const IValue& value) {
  return value.isBool() ? static_cast<int64_t>(value.toBool()) : value.toInt();
}

IValue unary(SymbolicOp op, const IValue& a) {
  switch (op) {
    case SymbolicOp::neg:
      if (a.isDouble()) return -a.toDouble();
      return on_ints(SymbolicOp::sub, 0, as_int(a));
    case SymbolicOp::trunc:
    case SymbolicOp::to_int:
      return a.isDouble() ? truncate(a.toDouble()) : as_int(a);
    case SymbolicOp::to_float:
      return as_double(a);
    case SymbolicOp::sqrt:
      require(as_double(a) >= 0, "the square root of a negative number");
      return std::sqrt(as_double(a));
    case SymbolicOp::logical_not:
      return as_double(a) == 0;
    default:  // pos
      return a;
  }
}

}  // namespace

std::optional<SymbolicTarget> find_symbolic(std::string_view target) {
  const auto found = std::ranges::find(kRows, target, &Row::target);
  if (found == kRows.end()) return std::nullopt;
  return SymbolicTarget{found->op, found->operands};
}

IValue evaluate(SymbolicOp op, std::span<const IValue> operands) {
  for (const auto& operand : operands) {
    require(operand.isInt() || operand.isDouble() || operand.isBool(),
            "arithmetic on sizes with an operand that is ", operand.tagKind(), ", not a number");
  }
  if (operands.size() == 1) return unary(op, operands[0]);
  if (op == SymbolicOp::ite) return as_double(operands[0]) != 0 ? operands[1] : operands[2];
  const IValue& a = operands[0];
  const IValue& b = operands[1];
  if (a.isDouble() || b.isDouble()) return on_floats(op, as_double(a), as_double(b));
  const IValue out = on_ints(op, as_int(a), as_int(b));
  const bool logical = op == SymbolicOp::logical_and || op == SymbolicOp::logical_or;
  return logical && a.isBool() && b.isBool() ? IValue(out.toInt() != 0) : out;
}

}  // namespace tessera::interp
