#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>

#include <memory>
#include <span>
#include <vector>

#include "tessera/dtensor/dispatch/op/op_entry.h"
#include "tessera/rules/op_call.h"

namespace tessera::dtensor {

/// The arguments of a call as its rule sees them: tensors as shardings, numbers as objects that
/// record what is queried about them. Numbers are indexed in the order of the call's key
/// (dispatch/call_key.h).
class RuleArgs {
 public:
  /// A plain tensor, or one of another mesh, counts as replicated over `mesh`.
  RuleArgs(const OpEntry& entry, const c10::OperatorHandle& op, const torch::jit::Stack& stack,
           const DeviceMesh& mesh);

  std::span<const rules::NamedArg> list() const { return list_; }
  /// What has been queried about the numbers so far.
  const rules::NumberQueries& asked() const { return *asked_; }
  /// For code that reads numbers without recording it; complex ones too.
  void ask_for_all_numbers() const;

 private:
  std::shared_ptr<rules::NumberQueries> asked_;
  std::vector<rules::NumberQuery> all_numbers_;
  std::vector<rules::NamedArg> list_;
};

/// The value that a rule substitutes for an argument.
c10::IValue to_ivalue(const rules::Arg& arg);

}  // namespace tessera::dtensor
