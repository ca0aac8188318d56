#pragma once

#include <ATen/core/operator_name.h>

#include <algorithm>
#include <string>
#include <string_view>

/// Names of operators as text: "aten::add.Tensor"; "aten::mm" for the unnamed overload.
namespace tessera::dtensor {

inline std::string op_name(const c10::OperatorName& name) {
  return name.overload_name.empty() ? name.name : name.name + "." + name.overload_name;
}

inline c10::OperatorName parse_op_name(std::string_view name) {
  const size_t dot = std::min(name.find('.'), name.size());
  const size_t overload = std::min(dot + 1, name.size());
  return {std::string(name.substr(0, dot)), std::string(name.substr(overload))};
}

}  // namespace tessera::dtensor
