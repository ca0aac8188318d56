#include "tessera/dtensor/tensor/use_key.h"

#include <c10/core/impl/LocalDispatchKeySet.h>

#include <atomic>

namespace tessera::dtensor {
namespace {

std::atomic<EveryOpHandler> installed_handler{nullptr};

}  // namespace

void set_every_op_handler(EveryOpHandler handler) { installed_handler = handler; }

EveryOpHandler every_op_handler() {
  const bool included = c10::impl::tls_local_dispatch_key_set().included_.has(kUseKey);
  return included ? installed_handler.load() : nullptr;
}

}  // namespace tessera::dtensor
