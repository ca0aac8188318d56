#pragma once

#include <ATen/core/function_schema.h>
#include <c10/core/Device.h>

#include <functional>
#include <optional>
#include <span>
#include <string>

#include "tessera/interp/instruction.h"
#include "tessera/program/graph.h"

namespace tessera::interp {

/// What the arguments of one graph are converted with.
struct ConvertOptions {
  const program::Graph* graph = nullptr;
  /// By ValueId: the index in the table of values.
  std::span<const ValueIndex> slots;
  /// In place of every device that the program names.
  std::optional<c10::Device> device;
  /// The registered name of the process group that the program calls by this name.
  std::function<std::string(const std::string& name)> group_name;
};

/// An argument of a node as its operator's schema wants it. Python's conversions are made: a number
/// for a Tensor, an int for a float, one int for int[2], any empty list. Throws InvalidArgument for
/// a kind that does not fit, NotSupported for one that only Python can make (custom objects).
ArgSource convert_argument(const program::Argument& arg, const c10::Argument& formal,
                           const ConvertOptions& options);

/// The schema's default; InvalidArgument if it has none.
ArgSource default_argument(const c10::Argument& formal);

/// An argument without a schema: of symbolic arithmetic, or an output of the graph. Values,
/// numbers, booleans, text and none.
ArgSource convert_plain(const program::Argument& arg, const ConvertOptions& options);

c10::Device to_device(const program::Device& device);

}  // namespace tessera::interp
