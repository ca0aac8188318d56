#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <span>

/// What module.to(...) is for parameters that fully_shard holds: they are shards of memory that a
/// group shares, so the group changes, not one tensor.
///
///   convert_shards(model->parameters(),
///                  [](const at::Tensor& shard) { return shard.to(at::kDouble); });
namespace tessera {

/// Puts convert(shard) in the place of this rank's shard of each parameter. Parameters of a group
/// may differ in type, not in device. Optimizers made before stay valid; gradients follow.
void convert_shards(std::span<const at::Tensor> parameters,
                    const std::function<at::Tensor(const at::Tensor& shard)>& convert);

/// `tensor` becomes the parameter in the place of `held`, which nobody should use afterwards: for a
/// tensor that a program has put into a module instead of it. Its value is the group's.
void hold_instead(const at::Tensor& held, const at::Tensor& tensor);

}  // namespace tessera
