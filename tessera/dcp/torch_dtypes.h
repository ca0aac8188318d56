#pragma once

#include <optional>
#include <span>
#include <string_view>

#include "tessera/base/dtype.h"

namespace tessera::dcp {

/// "float32": the name in Python's module torch.
std::string_view torch_name(DType dtype);
/// Of "torch.float32", with the module.
std::optional<DType> dtype_from_torch_name(std::string_view full_name);

/// "FloatStorage"; "" for a type that torch.save stores untyped (float8, uint16, ...).
std::string_view storage_name(DType dtype);
/// Of "torch.FloatStorage", with the module.
std::optional<DType> dtype_from_storage_name(std::string_view full_name);

/// The names of all of them, as a pickle has them: "torch.float32", ..., "torch.FloatStorage", ...
std::span<const std::string_view> dtype_globals();

}  // namespace tessera::dcp
