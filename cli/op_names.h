#pragma once

#include <ATen/core/dispatch/Dispatcher.h>

#include <optional>
#include <string>
#include <vector>

#include "tessera/dtensor/dispatch/op/op_name.h"

/// Ops by name, and suggestions for unknown names.
namespace tessera::cli {

using dtensor::op_name;

std::optional<c10::OperatorHandle> find_op(const std::string& name);

/// All overloads of "aten::add" that return new tensors.
std::vector<c10::OperatorHandle> overloads_of(const std::string& packet);

/// "aten::sum.dim_IntList(Tensor self, int[1]? dim, bool keepdim=False, ...)"
std::string schema_text(const c10::FunctionSchema& schema);

/// "; did you mean aten::mm, aten::mv?", or "".
std::string similar_text(const std::string& name);

}  // namespace tessera::cli
