#pragma once

#include <c10/core/impl/LocalDispatchKeySet.h>

#include "tessera/base/api.h"

namespace tessera {

/// While it is alive, tensors that this thread creates without a device are on meta: they have a
/// shape but no memory, and writes to them are lost. C++ modules create their tensors in their
/// constructors and take no device, so this is how a module larger than the machine is created:
///
///   auto model = [&] { MetaInit meta; return Model(config); }();
///
/// Tensors created with a device, or like another tensor, are not affected. Guards nest.
class TESSERA_API MetaInit {
 public:
  MetaInit();

 private:
  /// libtorch reserves this key for deferred module initialization.
  c10::impl::IncludeDispatchKeyGuard guard_;
};

}  // namespace tessera
