#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "tessera/base/api.h"
#include "tessera/rules/number.h"
#include "tessera/sharding/sharding.h"

/// An op's call as rules see it: metadata only, equal on every rank.
///
/// A tensor argument is its Sharding (undefined: an absent optional tensor). A number (Scalar,
/// float) is a Number, which records queries; one that cannot change (from the command line) may be
/// a bool or an int.
namespace tessera::rules {

using Arg = std::variant<std::monostate,                      // None, or not used by rules
                         Sharding,                            // Tensor, Tensor?
                         std::vector<Sharding>,               // Tensor[], Tensor?[]
                         bool, int64_t, Number, std::string,  //
                         std::vector<int64_t>, std::vector<Number>, std::vector<bool>>;

struct TESSERA_API NamedArg {
  std::string_view name;  ///< as in the schema: "self", "dim"
  Arg value;
};

/// What is known of a result in advance.
struct TESSERA_API ResultMeta {
  std::vector<int64_t> shape;
  std::vector<int64_t> stride;
  DType dtype = DType::f32;
  int64_t offset = 0;          ///< of a view: its first element, relative to that of its base
  bool guesses_dtype = false;  ///< the rule alone is known, which describes shapes
  bool operator==(const ResultMeta&) const = default;
};

struct TESSERA_API OpCall {
  std::string_view op;  ///< "aten::add.Tensor"; default overloads without a suffix: "aten::mm"
  std::span<const NamedArg> args;
  DeviceMesh mesh;
  /// Global metadata of the results, flattened, if known from elsewhere (Meta kernels); otherwise
  /// empty.
  std::vector<ResultMeta> results;

  /// nullptr if there is no such argument.
  const Arg* find(std::string_view name) const;
  int64_t int_or(std::string_view name, int64_t otherwise) const;
  bool bool_or(std::string_view name, bool otherwise) const;
  /// An int becomes a one-element list; None and absence an empty list.
  std::vector<int64_t> ints(std::string_view name) const;

  /// All tensors among the arguments in order, lists flattened, including undefined ones: the
  /// *operands* that a row places.
  std::vector<Sharding> operands() const;
};

}  // namespace tessera::rules
