#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <span>

#include "tessera/base/api.h"

/// The equivalent of module.to(...) for parameters of fully_shard. They are shards of memory shared
/// by a group, so the whole group is converted rather than one tensor.
///
///   convert_shards(model->parameters(),
///                  [](const at::Tensor& shard) { return shard.to(at::kDouble); });
namespace tessera {

/// Replaces this rank's shard of each parameter by convert(shard). Parameters of a group may differ
/// in dtype but not in device. Existing optimizers stay valid; gradients are converted as well.
TESSERA_API void convert_shards(std::span<const at::Tensor> parameters,
                                const std::function<at::Tensor(const at::Tensor& shard)>& convert);

/// Makes `tensor` the parameter in place of `held`, which must not be used afterwards. For programs
/// that have assigned another tensor to the module. Its value is the one that the group stores.
TESSERA_API void replace_parameter(const at::Tensor& held, const at::Tensor& tensor);

}  // namespace tessera
