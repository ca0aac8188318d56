#pragma once

#include <ATen/core/boxing/KernelFunction.h>

#include <memory>
#include <string_view>

#include "tessera/base/api.h"
#include "tessera/dtensor/dispatch/op/op_entry.h"

namespace tessera::dtensor {

/// Registers the sharded kernel for every op, once per process: 2,400 ops in a few milliseconds.
/// Runs when the library is loaded, see ops/install.cpp.
void register_kernels();

/// The op's entry; one of its own for an op without the sharded kernel.
std::shared_ptr<const OpEntry> entry_of(const c10::OperatorHandle& op);

/// Whether the op exists and has the sharded kernel.
bool has_kernel(std::string_view op);

/// Makes an op of other ops, before it is first used with sharded tensors. For a composite op that
/// has a kernel here (dtensor/dispatch/composite.h): tried before libtorch's decomposition.
void set_decomposition(std::string_view op, Decomposition decomposition);
/// A decomposition of some calls only: it declines the others, which run by the op's rows.
void set_special_case(std::string_view op, Decomposition decomposition);
void set_infer(std::string_view op, Infer infer);

/// A kernel for an op that libtorch has none for on CPU and CUDA. On Meta too, where it gives the
/// shapes.
void add_local_kernel(std::string_view op, const c10::KernelFunction& kernel);

/// Registers the sharded kernel for an op of another library, which may not be defined yet. Without
/// it such an op has only the fallback, over which a composite kernel takes precedence.
TESSERA_API void claim(std::string_view op);

/// Whether every call of the op is decomposed by this library.
bool is_decomposed(std::string_view op);

/// Whether the op has no rule because it is computed as other ops, each with a rule of its own: by
/// libtorch (CompositeImplicitAutograd) or by this library.
TESSERA_API bool is_made_of_ops(std::string_view op);

}  // namespace tessera::dtensor
