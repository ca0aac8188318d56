#pragma once

/// Ops that are not "the same op on local tensors".
namespace tessera::dtensor {

/// Sets every handler and local kernel of the library; called once, after registration.
void install_handlers();

}  // namespace tessera::dtensor
