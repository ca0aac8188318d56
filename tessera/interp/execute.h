#pragma once

#include <ATen/core/ivalue.h>

#include <span>
#include <vector>

#include "tessera/interp/instruction.h"

namespace tessera::interp {

/// Runs code over a table of values. Not for several threads at once.
///
/// Kernels are called below autograd: results never require a gradient. Per call, beside the op
/// itself: a copy of each argument (16 bytes, a reference count) and what the dispatcher takes to
/// unbox them.
class Executor {
 public:
  explicit Executor(Code code);

  /// A weight: input `i` of the graph for every run from now on.
  void set_input(size_t i, c10::IValue value);
  /// The same for one run: released when it ends.
  void set_run_input(size_t i, c10::IValue value);

  /// Runs all instructions; the graph's outputs. Errors of an op keep their kind where it is one of
  /// the library's (a PeerError of a collective), others are InvalidArgument; all name the node.
  /// All values but weights are released, also after an error.
  std::vector<c10::IValue> run(const std::string& document);

  const Code& code() const { return code_; }

 private:
  c10::IValue read(const ArgSource& arg);
  c10::IValue list_of(const ArgSource& arg) const;
  void execute(const Instruction& instruction);
  void store(const Instruction& instruction);
  void release();
  [[noreturn]] void rethrow(const Instruction& instruction, const std::string& document) const;

  Code code_;
  std::vector<c10::IValue> values_;
  std::vector<c10::IValue> stack_;
  std::vector<bool> keeps_;  // by value: a weight
};

}  // namespace tessera::interp
