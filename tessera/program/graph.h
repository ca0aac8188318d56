#pragma once

#include <compare>
#include <complex>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <variant>
#include <vector>

#include "tessera/base/api.h"
#include "tessera/program/tensor_meta.h"

/// The graph of an exported program as plain data, one type per concept of the file format:
///
///   Graph      inputs -> nodes in order of execution -> outputs, and the table of values
///   Node       target "torch.ops.aten.linear.default", named input arguments, outputs
///   Argument   what is passed: a value, a number, a list, a dtype, another graph, ...
///   Value      a name that arguments reference, with its metadata
///
/// Arguments reference values by ValueId, an index into Graph::values; names are kept for files and
/// messages. Members of the format that these types do not represent are kept as JSON text in
/// `unknown` and written back.
namespace tessera::program {

struct TESSERA_API ValueId {
  uint32_t index = 0;
  auto operator<=>(const ValueId&) const = default;
};

enum class ValueKind : uint8_t { tensor, sym_int, sym_float, sym_bool, custom_obj };

struct TESSERA_API Value {
  std::string name;
  ValueKind kind = ValueKind::tensor;
  std::optional<TensorMeta> tensor;  ///< of a tensor
  std::optional<Size> size;          ///< of a sym_int
  std::string json;                  ///< the file's description of one of the other kinds
};

struct Graph;
struct Argument;

/// The kinds of arguments, each with the type of its `data`; the names are the format's without
/// "as_".
enum class ArgKind : uint8_t {
  none,                ///< std::monostate
  tensor,              ///< ValueId
  tensors,             ///< std::vector<ValueId>
  integer,             ///< int64_t            (as_int)
  ints,                ///< std::vector<int64_t>
  floating,            ///< double             (as_float)
  floats,              ///< std::vector<double>
  string,              ///< std::string
  strings,             ///< std::vector<std::string>
  sym_int,             ///< IntOrValue
  sym_ints,            ///< std::vector<IntOrValue>
  scalar_type,         ///< DType
  memory_format,       ///< int64_t, the format's number
  layout,              ///< Layout
  device,              ///< Device
  boolean,             ///< bool               (as_bool)
  bools,               ///< std::vector<bool>
  sym_bool,            ///< BoolOrValue
  sym_bools,           ///< std::vector<BoolOrValue>
  graph,               ///< Subgraph
  optional_tensors,    ///< std::vector<std::optional<ValueId>>
  custom_obj,          ///< CustomObject
  op,                  ///< std::string        (as_operator)
  sym_float,           ///< FloatOrValue
  sym_floats,          ///< std::vector<FloatOrValue>
  optional_tensor,     ///< std::optional<ValueId>
  complex,             ///< std::complex<double>
  nested_tensors,      ///< std::vector<std::vector<ValueId>>
  int_lists,           ///< std::vector<std::vector<int64_t>>
  string_to_argument,  ///< std::vector<std::pair<std::string, Argument>>
  float_lists,         ///< std::vector<std::vector<double>>
};

using IntOrValue = std::variant<int64_t, ValueId>;
using FloatOrValue = std::variant<double, ValueId>;
using BoolOrValue = std::variant<bool, ValueId>;

/// The body of a higher-order op (cond, map, ...). It has its own values.
struct TESSERA_API Subgraph {
  std::string name;
  std::shared_ptr<Graph> graph;
};

struct TESSERA_API CustomObject {
  ValueId value;
  std::string class_fqn;
};

struct TESSERA_API Argument {
  using Data =
      std::variant<std::monostate, ValueId, std::vector<ValueId>, int64_t, std::vector<int64_t>,
                   double, std::vector<double>, std::string, std::vector<std::string>, IntOrValue,
                   std::vector<IntOrValue>, DType, Layout, Device, bool, std::vector<bool>,
                   BoolOrValue, std::vector<BoolOrValue>, Subgraph,
                   std::vector<std::optional<ValueId>>, CustomObject, FloatOrValue,
                   std::vector<FloatOrValue>, std::optional<ValueId>, std::complex<double>,
                   std::vector<std::vector<ValueId>>, std::vector<std::vector<int64_t>>,
                   std::vector<std::pair<std::string, Argument>>, std::vector<std::vector<double>>>;

  ArgKind kind = ArgKind::none;
  Data data;

  static Argument of_tensor(ValueId value) { return {ArgKind::tensor, value}; }
  static Argument of_int(int64_t value) { return {ArgKind::integer, value}; }
  static Argument of_ints(std::vector<int64_t> values) {
    return {ArgKind::ints, std::move(values)};
  }
  static Argument of_string(std::string text) { return {ArgKind::string, std::move(text)}; }

  template <typename T>
  const T& as() const {
    return std::get<T>(data);
  }
};

enum class PassedBy : uint8_t { unknown = 0, position = 1, keyword = 2 };

struct TESSERA_API NamedArgument {
  std::string name;
  Argument arg;
  std::optional<PassedBy> passed_by;
};

struct TESSERA_API Node {
  std::string target;
  std::vector<NamedArgument> inputs;
  std::vector<Argument> outputs;
  std::vector<std::pair<std::string, std::string>> metadata;
  std::optional<bool> is_hop_single_tensor_return;
  std::optional<std::string> name;
  std::string unknown;  ///< JSON members that this type does not represent, or empty

  /// nullptr if the argument was not passed.
  const Argument* find(std::string_view argument) const;
  std::string_view metadata_of(std::string_view key) const;
  /// "aten::linear" and "default" of "torch.ops.aten.linear.default"; empty names for targets that
  /// are not operators of a library ("_operator.mul").
  std::pair<std::string, std::string> op_name() const;
};

struct TESSERA_API Graph {
  std::vector<Value> values;
  std::vector<Argument> inputs;
  std::vector<Argument> outputs;
  std::vector<Node> nodes;
  bool is_single_tensor_return = false;
  std::string unknown;

  const Value& value(ValueId id) const { return values[id.index]; }
  Value& value(ValueId id) { return values[id.index]; }
  /// Adds a value; throws InvalidArgument if the name is taken.
  ValueId add_value(Value value);
  std::optional<ValueId> find_value(std::string_view name) const;
  /// `base`, or `base_1`, `base_2`, ... if that is taken.
  std::string unused_name(std::string_view base) const;

 private:
  std::unordered_map<std::string, ValueId> by_name_;
};

/// Calls `visit(ValueId)` for every value that an argument references, without entering bodies of
/// higher-order ops.
template <typename Visit>
void each_value(const Argument& argument, const Visit& visit);

/// The name of an argument's kind in the file: "as_tensor".
TESSERA_API std::string_view wire_name(ArgKind kind);
TESSERA_API std::optional<ArgKind> arg_kind_from_wire(std::string_view name);

namespace detail {

template <typename Visit>
struct ValueWalk {
  const Visit& visit;

  void operator()(ValueId id) const { visit(id); }
  void operator()(const std::optional<ValueId>& id) const {
    if (id) visit(*id);
  }
  void operator()(const CustomObject& object) const { visit(object.value); }
  void operator()(const Argument& arg) const { std::visit(*this, arg.data); }
  void operator()(const std::pair<std::string, Argument>& member) const { (*this)(member.second); }
  template <typename T>
  void operator()(const std::variant<T, ValueId>& either) const {
    if (const auto* id = std::get_if<ValueId>(&either)) visit(*id);
  }
  template <typename T>
  void operator()(const std::vector<T>& list) const {
    for (size_t i = 0; i < list.size(); ++i) (*this)(static_cast<const T&>(list[i]));
  }
  template <typename T>
  void operator()(const T&) const {}  // references nothing
};

}  // namespace detail

template <typename Visit>
void each_value(const Argument& argument, const Visit& visit) {
  std::visit(detail::ValueWalk<Visit>{visit}, argument.data);
}

}  // namespace tessera::program
