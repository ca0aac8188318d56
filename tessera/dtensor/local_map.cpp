#include "tessera/dtensor/local_map.h"

#include <algorithm>

#include "tessera/base/errors.h"
#include "tessera/dtensor/dtensor.h"

namespace tessera::dtensor {
namespace {

std::vector<Placement> entry(const std::vector<std::vector<Placement>>& list, size_t index) {
  return index < list.size() ? list[index] : std::vector<Placement>();
}

at::Tensor placed(const at::Tensor& input, size_t index, const LocalMapOptions& options) {
  const auto wanted = entry(options.in_placements, index);
  if (wanted.empty()) return input;
  const Sharding& has = sharding(input);
  const Sharding to = has.with_placements(wanted);
  if (to == has) return input;
  require(options.redistribute_inputs, "local_map: input ", index, " is ", has,
          ", in_placements say ", to.placements_text(),
          "; redistribute it first or set redistribute_inputs");
  return redistribute(input, to);
}

}  // namespace

DeviceMesh localise_inputs(std::span<at::Tensor* const> inputs, const LocalMapOptions& options) {
  require(options.in_placements.size() <= inputs.size(), "local_map: placements for ",
          options.in_placements.size(), " inputs, called with ", inputs.size(), " tensors");
  DeviceMesh mesh = options.mesh;
  for (size_t i = 0; i < inputs.size(); ++i) {
    at::Tensor& input = *inputs[i];
    if (!is_dtensor(input)) {
      require(entry(options.in_placements, i).empty(), "local_map: input ", i,
              " is a plain tensor but in_placements say ",
              placements_text(entry(options.in_placements, i)), "; distribute it first");
      continue;
    }
    const DeviceMesh& its = device_mesh(input);
    if (!mesh.defined()) mesh = its;
    require(its == mesh, "local_map: input ", i, " is on mesh ", its, ", the call on ", mesh,
            "; redistribute it to one mesh");
    input = to_local(placed(input, i, options),
                     {.grad_placements = entry(options.in_grad_placements, i)});
  }
  return mesh;
}

void globalise_outputs(std::span<at::Tensor* const> outputs, const DeviceMesh& mesh,
                       const LocalMapOptions& options) {
  require(outputs.size() == options.out_placements.size(), "local_map: placements for ",
          options.out_placements.size(), " outputs, the function gave ", outputs.size(),
          " tensors");
  for (size_t i = 0; i < outputs.size(); ++i) {
    if (options.out_placements[i].empty() || !outputs[i]->defined()) continue;
    require(mesh.defined(), "local_map: no input is sharded and no mesh was given for the outputs");
    *outputs[i] =
        from_local(*outputs[i], mesh, options.out_placements[i], {.even = options.even_outputs});
  }
}

}  // namespace tessera::dtensor
