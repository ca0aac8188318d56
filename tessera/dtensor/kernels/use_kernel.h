#pragma once

/// The kernel of every op on a tensor with kUseKey (dtensor/tensor/use_key.h), above autograd:
///
///   a weight with a style   the style prepares the input and places the result (weight_style.h)
///   a meta tensor           plain meta tensors beside it are taken as replicated here: libtorch
///                           would choose the kernel of Meta, and the result would be plain
///   a Partial operand       if the op needs another sharding, it is redistributed here, where
///                           autograd records it, and once (dtensor/redistribute_once.h): the
///                           next op that uses it, and the gradients of all of them, find it
///                           reduced
///
/// Ops that accept a Partial operand as it is (a sum of two, a view, a product with a replicated
/// tensor) still get it so, unless a reduced copy is there already. In backward, an elementwise
/// product or a norm's derivative also reduces: gradients are added up as Partial, and reduced once
/// before the derivative of the tensor's own op uses them, instead of once in each gradient that is
/// computed from them.
namespace tessera::dtensor {

void register_use_kernel();

}  // namespace tessera::dtensor
