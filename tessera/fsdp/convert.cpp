#include "tessera/fsdp/convert.h"

#include <map>
#include <vector>

#include "tessera/base/errors.h"
#include "tessera/fsdp/param_group.h"

namespace tessera {
namespace {

fsdp::PlaceOfParameter place_of(const at::Tensor& parameter) {
  auto place = fsdp::place_of_parameter(parameter);
  require(place.group != nullptr, "a tensor of ", shape_text(parameter.sizes()),
          " that fully_shard does not hold; tensor.to(...) converts it");
  return place;
}

}  // namespace

void convert_shards(std::span<const at::Tensor> parameters,
                    const std::function<at::Tensor(const at::Tensor& shard)>& convert) {
  std::map<std::shared_ptr<fsdp::ParamGroup>, std::map<size_t, at::Tensor>> made;  // tied ones once
  for (const at::Tensor& parameter : parameters) {
    const auto [group, index] = place_of(parameter);
    at::Tensor& shard = made[group][index];
    if (!shard.defined()) shard = convert(group->shard(index));
  }
  for (const auto& [group, replaced] : made) {
    std::vector<at::Tensor> shards;
    for (size_t i = 0; i < group->params(); ++i) {
      const auto at = replaced.find(i);
      shards.push_back(at != replaced.end() ? at->second : group->shard(i));
    }
    group->replace_shards(shards);
  }
}

void replace_parameter(const at::Tensor& held, const at::Tensor& tensor) {
  const auto [group, index] = place_of(held);
  require(tensor.sizes() == held.sizes() && tensor.scalar_type() == held.scalar_type(),
          "a tensor of ", shape_text(tensor.sizes()), " in the place of a parameter of ",
          shape_text(held.sizes()));
  group->replace_parameter(index, tensor);
}

}  // namespace tessera
