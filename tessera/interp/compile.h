#pragma once

#include <c10/core/Device.h>

#include <functional>
#include <optional>
#include <string>

#include "tessera/interp/instruction.h"
#include "tessera/program/exported_program.h"

namespace tessera::interp {

struct CompileOptions {
  /// In place of every device that nodes name; absent: as the program says.
  std::optional<c10::Device> device;
  /// By the program's name of a process group: the name under which c10d knows it.
  std::function<std::string(const std::string& name)> group_name;
};

/// Looks every node up in the dispatcher and prepares its call. This is also the check of nodes
/// against their operators' schemas: an unknown operator, an argument that is missing, unknown or
/// of another type, a result too many, all are InvalidArgument that names `document` and the node.
///
/// Bodies of torch.no_grad() blocks (wrap_with_set_grad_enabled, and wrap_with_autocast that turns
/// autocast off) are compiled in place; every other higher-order op is NotSupported.
Code compile(const program::ExportedProgram& program, const CompileOptions& options,
             const std::string& document);

}  // namespace tessera::interp
