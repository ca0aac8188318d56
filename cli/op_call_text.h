#pragma once

#include <ATen/core/dispatch/Dispatcher.h>

#include <optional>
#include <span>
#include <string>
#include <vector>

#include "tessera/rules/op_call.h"

/// A call of an op, written as words:
///
///   aten::mm            "S0,R : 8x16" "R,S1 : 16x32"      tensors in schema order
///   aten::sum           "S0 : 8x16" dim=1 keepdim=true    other arguments by name
///   aten::cat           "[S0 : 8x16; S0 : 4x16 bf16]"     a list of tensors
///   aten::linear        8x16 4x16 bias=-                  a shape only: replicated; `-`: none
///   aten::_to_copy      "S0 : 8x16" dtype=bf16            element types as in shardings
///
/// Missing arguments have the schema's default. Lists: dim=0,1 or dim=[0,1].
namespace tessera::cli {

class OpCallText {
 public:
  /// Throws InvalidArgument that lists the op's arguments, or ops with a similar name. A name
  /// without an overload ("aten::add") means the single overload that accepts the words.
  OpCallText(const std::string& op, const std::string& mesh, std::span<const std::string> words);

  const c10::OperatorHandle& op() const { return *op_; }
  const std::string& name() const { return name_; }
  rules::OpCall call() const { return {name_, args_, mesh_, {}}; }

 private:
  std::optional<c10::OperatorHandle> op_;
  std::string name_;
  DeviceMesh mesh_;
  std::vector<rules::NamedArg> args_;
};

}  // namespace tessera::cli
