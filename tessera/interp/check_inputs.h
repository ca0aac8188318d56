#pragma once

#include <ATen/core/ivalue.h>
#include <c10/core/Device.h>

#include <optional>
#include <span>
#include <string>
#include <vector>

#include "tessera/program/exported_program.h"

namespace tessera::interp {

/// Checks the inputs of a call against what the program was exported for: element types, devices,
/// numbers of dims, sizes. Symbolic sizes take their value from the first input that has them;
/// every other must agree and be in the symbol's range.
///
///   tokens: i64 s1xs2, shift: f32 s2     tokens of 3x7 make s1 = 3, s2 = 7; shift must have 7
///
/// A smallest size of 2 or less is not enforced: PyTorch notes it for every dynamic size that
/// it did not specialise to 0 or 1, and runs such sizes too.
class InputCheck {
 public:
  struct Input {
    std::string name;
    const program::Value* value;  ///< of the program's graph, which must outlive this
  };

  InputCheck(const program::ExportedProgram& program, const std::vector<Input>& inputs,
             std::optional<c10::Device> device);

  /// Throws InvalidArgument that names the input, what it is and what it should be.
  void check(std::span<const c10::IValue> inputs);

  /// The value of a symbol in the call that was checked last; nothing if no input gives it.
  std::optional<int64_t> symbol(std::string_view name) const;

 private:
  struct Symbol {
    std::string name;
    program::Range range;
    std::optional<int64_t> value;
    size_t input = 0;  // that gave the value
  };
  struct Dim {
    std::optional<int64_t> number;
    std::optional<size_t> symbol;
    std::optional<program::Expression> expression;
  };
  struct Expected {
    std::string name;
    const program::Value* value;
    std::optional<c10::Device> device;
    std::vector<Dim> dims;
  };

  Dim dim_of(const program::Size& size, const program::ExportedProgram& program);
  void check_tensor(size_t i, const c10::IValue& given);
  void check_number(size_t i, const c10::IValue& given);
  void check_size(size_t i, const Dim& dim, int64_t size, size_t position);
  void check_expressions(std::span<const c10::IValue> inputs) const;
  [[noreturn]] void fail(size_t i, const c10::IValue& given, const std::string& why) const;

  std::vector<Expected> inputs_;
  std::vector<Symbol> symbols_;
  bool has_expressions_ = false;
};

}  // namespace tessera::interp
