#pragma once

#include <bit>
#include <concepts>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "tessera/base/api.h"

/// Numeric arguments of an op (Scalar, float), as rules see them.
///
/// Decisions are cached, and a number that changes in every step (a learning rate) must not create
/// a new decision each time. So the key of a decision contains only what was queried about a
/// number: a rule accesses it through queries, which are recorded.
///
///   number.equals(0)     the key holds whether it is 0: 2 and 3 share a decision
///   number.to_double()   the key holds the number
///   number.type()        not recorded: types are always part of the key
namespace tessera::rules {

enum class NumberType : uint8_t { boolean, integer, floating };

/// A query about one of a call's numbers.
struct TESSERA_API NumberQuery {
  uint32_t number = 0;  ///< its index among the call's numbers
  NumberType type{};
  bool whole = false;  ///< queries the number itself, else whether it equals `other`
  double other = 0;

  /// The answer for a number of this type, given by its 64 bits; equal answers mean equal
  /// decisions.
  uint64_t answer(uint64_t bits) const;
  bool operator==(const NumberQuery&) const = default;
};

/// All queries about the numbers of one call, or of all calls of an op.
class TESSERA_API NumberQueries {
 public:
  /// Returns false if the queries so far determine the answer. After several comparisons of one
  /// number, its value replaces them.
  bool add(const NumberQuery& question);
  bool empty() const { return list_.empty(); }
  std::span<const NumberQuery> list() const { return list_; }

 private:
  std::vector<NumberQuery> list_;
};

class TESSERA_API Number {
 public:
  // Only for these types: a pointer must not convert to bool, and `rules::Arg` accepts either.
  Number(std::same_as<bool> auto value) : bits_(value ? 1 : 0), type_(NumberType::boolean) {}
  Number(std::same_as<int64_t> auto value)
      : bits_(static_cast<uint64_t>(value)), type_(NumberType::integer) {}
  Number(std::same_as<double> auto value)
      : bits_(std::bit_cast<uint64_t>(value)), type_(NumberType::floating) {}

  NumberType type() const { return type_; }
  bool equals(double other) const;
  double to_double() const;
  int64_t to_int() const;  ///< a floating one is truncated
  bool to_bool() const;    ///< whether it is not zero

  /// The same number, whose accesses are recorded in `log` as those of the call's number `place`.
  Number recorded(std::shared_ptr<NumberQueries> log, uint32_t place) const;

 private:
  void read() const;

  uint64_t bits_;
  NumberType type_;
  uint32_t place_ = 0;
  std::shared_ptr<NumberQueries> log_;
};

}  // namespace tessera::rules
