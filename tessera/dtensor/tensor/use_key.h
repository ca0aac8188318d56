#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>
#include <c10/core/DispatchKey.h>

/// A dispatch key on those sharded tensors whose uses matter above autograd: tensors that are
/// Partial, weights with a parallel style, and meta tensors of fake ranks. An op on one of them
/// passes dtensor/kernels/use_kernel.h before autograd records it, and before a composite op is
/// decomposed. Ops on all other tensors never do.
namespace tessera::dtensor {

/// libtorch reserves this key for an extension (torchdistx) that is no longer developed: above
/// autograd and autocast, and no kernel of libtorch's own is registered for it.
constexpr c10::DispatchKey kUseKey = c10::DispatchKey::DeferredInit;

inline bool has_use_key(const at::Tensor& tensor) {
  return tensor.unsafeGetTensorImpl()->key_set().has(kUseKey);
}

/// Adds the key to a sharded tensor that is not Partial; Partial ones have it. It stays through
/// become().
void add_use_key(const at::Tensor& tensor);

/// The same key, included in a thread's keys, brings every op of the thread to `handler`, which
/// must exclude the key before it calls the op. For MetaInit (module/meta_init.h): a key has one
/// kernel.
using EveryOpHandler = void (*)(const c10::OperatorHandle& op, torch::jit::Stack* stack);
void set_every_op_handler(EveryOpHandler handler);
/// nullptr unless the key is included in this thread's keys.
EveryOpHandler every_op_handler();

}  // namespace tessera::dtensor
