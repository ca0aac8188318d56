#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "tessera/rules/number.h"
#include "tessera/sharding/sharding.h"

/// An op's call as rules see it: metadata only, the same on every rank.
///
/// A tensor argument is its Sharding (undefined: the optional tensor was not given). A number
/// (Scalar, float) is a Number, which records what is asked about it; one that is known for good (a
/// line of the command line) may be a bool or an int.
namespace tessera::rules {

using Arg = std::variant<std::monostate,                      // None, or something no rule looks at
                         Sharding,                            // Tensor, Tensor?
                         std::vector<Sharding>,               // Tensor[], Tensor?[]
                         bool, int64_t, Number, std::string,  //
                         std::vector<int64_t>, std::vector<Number>, std::vector<bool>>;

struct NamedArg {
  std::string_view name;  ///< as in the schema: "self", "dim"
  Arg value;
};

/// What is known of a result before it exists.
struct ResultMeta {
  std::vector<int64_t> shape;
  std::vector<int64_t> stride;
  DType dtype = DType::f32;
  int64_t offset = 0;  ///< of a view: its first element, counted from its base's
  bool operator==(const ResultMeta&) const = default;
};

struct OpCall {
  std::string_view op;  ///< "aten::add.Tensor"; default overloads without a suffix: "aten::mm"
  std::span<const NamedArg> args;
  DeviceMesh mesh;
  /// Global metadata of the results, flattened, where it was known from elsewhere (Meta kernels);
  /// empty otherwise.
  std::vector<ResultMeta> results;

  /// nullptr if there is no such argument.
  const Arg* find(std::string_view name) const;
  int64_t int_or(std::string_view name, int64_t otherwise) const;
  bool bool_or(std::string_view name, bool otherwise) const;
  /// An int becomes a list of one; None and absence an empty list.
  std::vector<int64_t> ints(std::string_view name) const;

  /// All tensors among the arguments in order, lists flattened, with the undefined ones: the
  /// *operands* that a row places.
  std::vector<Sharding> operands() const;
};

}  // namespace tessera::rules
