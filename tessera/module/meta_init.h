#pragma once

#include <c10/core/impl/LocalDispatchKeySet.h>

namespace tessera {

/// While it lives, tensors that this thread makes without naming a device are on meta: they have a
/// shape and no memory, and what is written to them is lost. C++ modules make their tensors in
/// their constructors and take no device, so this is how a module larger than the machine is made:
///
///   auto model = [&] { MetaInit meta; return Model(config); }();
///
/// Tensors that name a device, or are made like another one, are made there. Guards nest.
class MetaInit {
 public:
  MetaInit();

 private:
  /// libtorch keeps this key for libraries that put off the making of modules.
  c10::impl::IncludeDispatchKeyGuard guard_;
};

}  // namespace tessera
