#include "tessera/collective/reduce.h"

#include <ATen/OpMathType.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/bitwise_and.h>
#include <ATen/ops/bitwise_or.h>
#include <ATen/ops/bitwise_xor.h>
#include <ATen/ops/logical_and.h>
#include <ATen/ops/logical_or.h>
#include <ATen/ops/maximum.h>
#include <ATen/ops/minimum.h>
#include <c10/core/ScalarType.h>
#include <c10/util/complex.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <type_traits>

#include "tessera/base/errors.h"

namespace tessera::comm {
namespace {

using Op = c10d::ReduceOp::RedOpType;
using c10d::ReduceOp;

// A block of accumulators stays in the L1 cache while all ranks are added to it.
constexpr int64_t kBlock = 1024;

template <typename T>
constexpr bool kIsComplex = c10::is_complex<T>::value;

/// The type in which one element is accumulated.
template <typename T, Op op>
auto accumulator() {
  if constexpr (std::is_same_v<T, bool>) {
    return bool{};
  } else if constexpr (std::is_integral_v<T> && op == ReduceOp::AVG) {
    return std::conditional_t<std::is_signed_v<T>, int64_t, uint64_t>{};
  } else if constexpr (std::is_integral_v<T> && op == ReduceOp::PREMUL_SUM) {
    return double{};
  } else if constexpr (std::is_floating_point_v<T> || std::is_integral_v<T> || kIsComplex<T>) {
    return T{};
  } else {
    return float{};  // half, bfloat16, float8
  }
}

/// The divisor of an average. A complex divisor would multiply by its inverse, which rounds twice
/// and turns infinity into NaN.
template <typename A>
auto divisor(size_t ranks) {
  if constexpr (kIsComplex<A>) {
    return static_cast<typename A::value_type>(ranks);
  } else {
    return static_cast<A>(ranks);
  }
}

// Signed overflow is undefined, but c10d wraps: adds and multiplies as unsigned. At least 32 bits,
// so that short types are not promoted to a signed int that overflows.
template <typename A, typename F>
A wrapping(A a, A b, const F& f) {
  if constexpr (std::is_integral_v<A>) {
    using U = std::common_type_t<std::make_unsigned_t<A>, uint32_t>;
    return static_cast<A>(f(static_cast<U>(a), static_cast<U>(b)));
  } else {
    return f(a, b);
  }
}

template <Op op, typename A>
A combine(A a, A b) {
  if constexpr (std::is_same_v<A, bool>) {
    if constexpr (op == ReduceOp::BXOR) return a != b;
    if constexpr (op == ReduceOp::PRODUCT || op == ReduceOp::MIN || op == ReduceOp::BAND) {
      return a && b;
    }
    return a || b;
  } else if constexpr (op == ReduceOp::PRODUCT) {
    return wrapping(a, b, [](auto x, auto y) { return x * y; });
  } else if constexpr (op == ReduceOp::MIN) {
    return (a < b || a != a) ? a : b;  // a != a: propagates NaN
  } else if constexpr (op == ReduceOp::MAX) {
    return (a > b || a != a) ? a : b;
  } else if constexpr (op == ReduceOp::BAND) {
    return static_cast<A>(a & b);
  } else if constexpr (op == ReduceOp::BOR) {
    return static_cast<A>(a | b);
  } else if constexpr (op == ReduceOp::BXOR) {
    return static_cast<A>(a ^ b);
  } else {
    return wrapping(a, b, [](auto x, auto y) { return x + y; });
  }
}

template <typename T, Op op>
constexpr bool has_meaning() {
  constexpr bool bitwise = op == ReduceOp::BAND || op == ReduceOp::BOR || op == ReduceOp::BXOR;
  constexpr bool order = op == ReduceOp::MIN || op == ReduceOp::MAX;
  constexpr bool scales = op == ReduceOp::AVG || op == ReduceOp::PREMUL_SUM;
  if constexpr (std::is_same_v<T, bool>) return !scales;
  if constexpr (std::is_integral_v<T>) return true;
  return !bitwise && !(order && kIsComplex<T>);
}

template <typename T, Op op>
void reduce_typed(std::span<const double> factors, std::span<const void* const> sources,
                  std::span<void* const> targets, int64_t count) {
  using A = decltype(accumulator<T, op>());
  std::array<A, kBlock> block;
  const auto load = [&](size_t rank, T value) {
    if constexpr (op == ReduceOp::PREMUL_SUM && kIsComplex<T>) {
      return value * static_cast<typename T::value_type>(factors[rank]);
    } else if constexpr (op == ReduceOp::PREMUL_SUM) {
      return static_cast<A>(static_cast<A>(value) * static_cast<A>(factors[rank]));
    } else {
      return static_cast<A>(value);
    }
  };
  for (int64_t begin = 0; begin < count; begin += kBlock) {
    const int64_t n = std::min(kBlock, count - begin);
    for (size_t rank = 0; rank < sources.size(); ++rank) {
      const T* from = static_cast<const T*>(sources[rank]) + begin;
      if (rank == 0) {
        for (int64_t i = 0; i < n; ++i) block[static_cast<size_t>(i)] = load(rank, from[i]);
      } else {
        for (int64_t i = 0; i < n; ++i) {
          auto& a = block[static_cast<size_t>(i)];
          a = combine<op, A>(a, load(rank, from[i]));
        }
      }
    }
    if constexpr (op == ReduceOp::AVG) {
      const auto ranks = divisor<A>(sources.size());
      for (int64_t i = 0; i < n; ++i) block[static_cast<size_t>(i)] /= ranks;
    }
    for (void* target : targets) {
      T* to = static_cast<T*>(target) + begin;
      for (int64_t i = 0; i < n; ++i) to[i] = static_cast<T>(block[static_cast<size_t>(i)]);
    }
  }
}

template <typename T, Op op>
void reduce_checked(std::span<const double> factors, std::span<const void* const> sources,
                    std::span<void* const> targets, int64_t count) {
  if constexpr (has_meaning<T, op>()) {
    reduce_typed<T, op>(factors, sources, targets, count);
  } else {
    ensure(false, "a reduction that check_reduce refuses");
  }
}

template <typename T>
void reduce_of_type(const ReduceKind& kind, std::span<const void* const> sources,
                    std::span<void* const> targets, int64_t count) {
  switch (kind.op) {
    case ReduceOp::SUM:
      return reduce_checked<T, ReduceOp::SUM>(kind.factors, sources, targets, count);
    case ReduceOp::AVG:
      return reduce_checked<T, ReduceOp::AVG>(kind.factors, sources, targets, count);
    case ReduceOp::PRODUCT:
      return reduce_checked<T, ReduceOp::PRODUCT>(kind.factors, sources, targets, count);
    case ReduceOp::MIN:
      return reduce_checked<T, ReduceOp::MIN>(kind.factors, sources, targets, count);
    case ReduceOp::MAX:
      return reduce_checked<T, ReduceOp::MAX>(kind.factors, sources, targets, count);
    case ReduceOp::BAND:
      return reduce_checked<T, ReduceOp::BAND>(kind.factors, sources, targets, count);
    case ReduceOp::BOR:
      return reduce_checked<T, ReduceOp::BOR>(kind.factors, sources, targets, count);
    case ReduceOp::BXOR:
      return reduce_checked<T, ReduceOp::BXOR>(kind.factors, sources, targets, count);
    case ReduceOp::PREMUL_SUM:
      return reduce_checked<T, ReduceOp::PREMUL_SUM>(kind.factors, sources, targets, count);
    case ReduceOp::UNUSED:
      break;
  }
  ensure(false, "an unknown reduce op");
}

at::Tensor combine_tensors(Op op, const at::Tensor& a, const at::Tensor& b) {
  const bool logical = a.scalar_type() == c10::kBool;
  switch (op) {
    case ReduceOp::PRODUCT:
      return logical ? at::logical_and(a, b) : a * b;
    case ReduceOp::MIN:
      return at::minimum(a, b);
    case ReduceOp::MAX:
      return at::maximum(a, b);
    case ReduceOp::BAND:
      return at::bitwise_and(a, b);
    case ReduceOp::BOR:
      return at::bitwise_or(a, b);
    case ReduceOp::BXOR:
      return at::bitwise_xor(a, b);
    default:
      return logical ? at::logical_or(a, b) : a + b;
  }
}

}  // namespace

void check_reduce(Collective what, const c10d::ReduceOp& op, c10::ScalarType dtype) {
  const bool bitwise =
      op.op_ == ReduceOp::BAND || op.op_ == ReduceOp::BOR || op.op_ == ReduceOp::BXOR;
  const bool order = op.op_ == ReduceOp::MIN || op.op_ == ReduceOp::MAX;
  const bool scales = op.op_ == ReduceOp::AVG || op.op_ == ReduceOp::PREMUL_SUM;
  const bool meaningless = (bitwise && !c10::isIntegralType(dtype, /*includeBool=*/true)) ||
                           (order && c10::isComplexType(dtype)) ||
                           (scales && dtype == c10::kBool) || op.op_ >= ReduceOp::UNUSED;
  require(!meaningless, collective_name(what), ": ", reduce_op_name(op.op_), " of ",
          c10::toString(dtype), " has no meaning");
}

double premul_factor(const c10d::ReduceOp& op) {
  if (op.op_ != ReduceOp::PREMUL_SUM) return 1.0;
  // The name in torch 2.11, kept as an alias since.
  const auto* factor = dynamic_cast<const c10d::NCCLPreMulSumSupplement*>(op.supplement_.get());
  require(factor != nullptr, "premul_sum without a factor: c10d has a function that makes one");
  return factor->tensor_factor.defined() ? factor->tensor_factor.item().toDouble()
                                         : factor->double_factor;
}

void reduce_flat(c10::ScalarType dtype, const ReduceKind& kind,
                 std::span<const void* const> sources, std::span<void* const> targets,
                 int64_t count) {
  switch (dtype) {
    case c10::ScalarType::Bool:
      return reduce_of_type<bool>(kind, sources, targets, count);
    case c10::ScalarType::Byte:
      return reduce_of_type<uint8_t>(kind, sources, targets, count);
    case c10::ScalarType::Char:
      return reduce_of_type<int8_t>(kind, sources, targets, count);
    case c10::ScalarType::Short:
      return reduce_of_type<int16_t>(kind, sources, targets, count);
    case c10::ScalarType::Int:
      return reduce_of_type<int32_t>(kind, sources, targets, count);
    case c10::ScalarType::Long:
      return reduce_of_type<int64_t>(kind, sources, targets, count);
    case c10::ScalarType::UInt16:
      return reduce_of_type<uint16_t>(kind, sources, targets, count);
    case c10::ScalarType::UInt32:
      return reduce_of_type<uint32_t>(kind, sources, targets, count);
    case c10::ScalarType::UInt64:
      return reduce_of_type<uint64_t>(kind, sources, targets, count);
    case c10::ScalarType::Half:
      return reduce_of_type<c10::Half>(kind, sources, targets, count);
    case c10::ScalarType::BFloat16:
      return reduce_of_type<c10::BFloat16>(kind, sources, targets, count);
    case c10::ScalarType::Float:
      return reduce_of_type<float>(kind, sources, targets, count);
    case c10::ScalarType::Double:
      return reduce_of_type<double>(kind, sources, targets, count);
    case c10::ScalarType::Float8_e4m3fn:
      return reduce_of_type<c10::Float8_e4m3fn>(kind, sources, targets, count);
    case c10::ScalarType::Float8_e5m2:
      return reduce_of_type<c10::Float8_e5m2>(kind, sources, targets, count);
    case c10::ScalarType::ComplexFloat:
      return reduce_of_type<c10::complex<float>>(kind, sources, targets, count);
    case c10::ScalarType::ComplexDouble:
      return reduce_of_type<c10::complex<double>>(kind, sources, targets, count);
    default:
      break;
  }
  throw NotSupported(join_text("a ", reduce_op_name(kind.op), " of ", c10::toString(dtype),
                               " among thread ranks; convert the tensors first"));
}

at::Tensor reduce_tensors(const ReduceKind& kind, std::span<const at::Tensor> sources) {
  const auto dtype = sources.front().scalar_type();
  auto wide = at::toOpMathType(dtype);
  if (c10::isFloat8Type(dtype)) wide = c10::kFloat;
  if (kind.op == ReduceOp::AVG && c10::isIntegralType(dtype, /*includeBool=*/false)) {
    wide = c10::kLong;
  }
  const auto prepared = [&](size_t rank) {
    const at::Tensor t = sources[rank].to(sources.front().device(), wide);
    return kind.op == ReduceOp::PREMUL_SUM ? t * kind.factors[rank] : t;
  };
  at::Tensor result = prepared(0);
  for (size_t rank = 1; rank < sources.size(); ++rank) {
    result = combine_tensors(kind.op, result, prepared(rank));
  }
  if (kind.op == ReduceOp::AVG) {
    const auto ranks = static_cast<int64_t>(sources.size());
    result = c10::isIntegralType(dtype, false) ? result.div(ranks, "trunc") : result / ranks;
  }
  return result.to(dtype);
}

}  // namespace tessera::comm
