#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>

#include <memory>
#include <span>
#include <vector>

#include "tessera/dtensor/dispatch/op_entry.h"
#include "tessera/rules/op_call.h"

namespace tessera::dtensor {

/// The arguments of a call as its rule sees them: tensors as shardings, numbers that record what is
/// asked about them. Numbers are counted in the order of the call's key (call_key.h).
class RuleArgs {
 public:
  /// A plain tensor, or one of another mesh, is a replicated one of `mesh`.
  RuleArgs(const OpEntry& entry, const c10::OperatorHandle& op, const torch::jit::Stack& stack,
           const DeviceMesh& mesh);

  std::span<const rules::NamedArg> list() const { return list_; }
  /// What was asked about the numbers until now.
  const rules::NumberQuestions& asked() const { return *asked_; }
  /// For what reads numbers without asking.
  void ask_for_all_numbers() const;

 private:
  std::shared_ptr<rules::NumberQuestions> asked_;
  std::vector<rules::NamedArg> list_;
};

/// What a rule puts in the place of an argument.
c10::IValue to_ivalue(const rules::Arg& arg);

}  // namespace tessera::dtensor
