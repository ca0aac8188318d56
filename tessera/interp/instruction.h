#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/ivalue.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

/// What a program is compiled to: one Instruction a node, over a table of values. Everything that
/// does not depend on the inputs (schema look-ups, defaults, types, lists, last uses) is settled
/// here, so that running an instruction is: push the arguments, call, store the results.
namespace tessera::interp {

using ValueIndex = uint32_t;

/// A result that no instruction reads.
inline constexpr ValueIndex kUnused = ~ValueIndex{0};

/// What happens to a value before it is passed: numbers of the program (sizes, symbols) are passed
/// where an operator wants another type, as Python converts them.
enum class Conversion : uint8_t { none, to_float, to_tensor };

struct ListItem {
  std::optional<ValueIndex> value;  ///< absent: `constant`
  c10::IValue constant;
};

/// Where one argument of a call comes from.
struct ArgSource {
  enum class Kind : uint8_t { constant, value, tensors, optional_tensors, ints, floats, bools };

  Kind kind = Kind::constant;
  Conversion conversion = Conversion::none;
  bool last_use = false;          ///< the value is moved out of the table
  ValueIndex value = 0;           ///< of Kind::value
  c10::IValue constant{};         ///< of Kind::constant
  std::vector<ListItem> items{};  ///< of the lists that hold values
};

/// Where one result of a call goes.
struct ResultTarget {
  bool is_list = false;              ///< a list of tensors, one value each
  std::vector<ValueIndex> values{};  ///< one, unless it is a list
};

/// Arithmetic on sizes, which Python does outside of the dispatcher.
enum class SymbolicOp : uint8_t {
  eq,
  ne,
  le,
  ge,
  lt,
  gt,
  neg,
  pos,
  trunc,
  logical_not,
  mul,
  add,
  sub,
  floordiv,
  mod,
  pow,
  to_int,
  to_float,
  ite,
  max,
  min,
  sqrt,
  truediv,
  logical_and,
  logical_or,
  lshift,
  rshift,
};

struct Instruction {
  enum class Kind : uint8_t { op, sym_size, symbolic };

  Kind kind = Kind::op;
  SymbolicOp symbolic = SymbolicOp::add;
  std::optional<c10::OperatorHandle> op{};
  std::vector<ArgSource> args{};
  std::vector<ResultTarget> results{};
  std::vector<ValueIndex> frees{};  ///< values whose last use this is, besides moved arguments
  std::string node;  ///< for messages: "node 3 (linear_1), torch.ops.aten.linear.default"
};

struct Code {
  size_t values = 0;  ///< of the table
  std::vector<Instruction> instructions;
  /// Per input and output of the graph, in order; absent for an output that is not a value.
  std::vector<std::optional<ValueIndex>> inputs;
  std::vector<ArgSource> outputs;
};

}  // namespace tessera::interp
