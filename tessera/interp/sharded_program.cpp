#include "tessera/interp/sharded_program.h"

#include <ATen/ops/full.h>

#include <algorithm>
#include <torch/csrc/distributed/c10d/Backend.hpp>

#include "tessera/base/errors.h"
#include "tessera/exec/redistribute.h"

namespace tessera {
namespace {

using partition::Manifest;
using partition::ManifestTensor;

/// By port, its place in the manifest. Tensors of both must be the same.
std::vector<std::optional<size_t>> places_of(const std::vector<ProgramPort>& ports,
                                             const std::vector<ManifestTensor>& tensors,
                                             const std::string& path) {
  std::vector<std::optional<size_t>> out;
  for (const auto& port : ports) {
    const auto found = std::ranges::find(tensors, port.name, &ManifestTensor::name);
    if (found == tensors.end()) {
      require(!port.tensor, path, ": ", port, " is not in the manifest");
      out.emplace_back();
      continue;
    }
    require(
        port.tensor && port.tensor->dtype == found->dtype &&
            port.tensor->sizes.size() == found->shape.size(),
        path, ": ", port, " is ", dtype_name(found->dtype), " ",
        [&] { return shape_text(found->shape); }, " in the manifest");
    out.emplace_back(found - tensors.begin());
  }
  return out;
}

bool is_replicated(const ManifestTensor& tensor) {
  return std::ranges::all_of(tensor.placements,
                             [](const Placement& p) { return p.is_replicate(); });
}

Sharding replicated(const Sharding& sharding) {
  std::vector<Placement> all(static_cast<size_t>(sharding.mesh().ndim()), Replicate());
  return Sharding(sharding.mesh(), std::move(all),
                  {sharding.shape().begin(), sharding.shape().end()}, {.dtype = sharding.dtype()});
}

}  // namespace

ShardedProgram ShardedProgram::load(const std::filesystem::path& path,
                                    std::shared_ptr<comm::RankWorld> world,
                                    const ProgramOptions& options) {
  Manifest manifest = Manifest::read(path);
  if (!world) world = comm::current_world();
  require(world->size() == manifest.mesh.size(), path.string(), " is sharded for ", manifest.mesh,
          ", ", manifest.mesh.size(), " ranks, but there are ", world->size(),
          "; start as many (tessera run does)");
  const auto& mine = manifest.program_of(world->rank());
  ProgramOptions all = options;
  all.model = mine.model;
  for (const auto& group : manifest.groups) {
    if (std::ranges::find(group.ranks, world->rank()) == group.ranks.end()) continue;
    all.groups.emplace(group.name, world->group(group.ranks));
  }
  DeviceMesh mesh = comm::init_device_mesh(manifest.mesh.to_text(), world);
  Program program = Program::load(mine.file_in(path), all);
  return {std::move(manifest), std::move(mesh), std::move(program)};
}

ShardedProgram::ShardedProgram(Manifest manifest, DeviceMesh mesh, Program program)
    : manifest_(std::move(manifest)),
      mesh_(std::move(mesh)),
      program_(std::move(program)),
      inputs_(places_of(program_.inputs(), manifest_.inputs, program_.path())),
      outputs_(places_of(program_.outputs(), manifest_.outputs, program_.path())) {}

Program::Values ShardedProgram::slice(Program::Values inputs) const {
  for (size_t i = 0; i < inputs.size() && i < inputs_.size(); ++i) {
    if (!inputs_[i]) continue;
    const ManifestTensor& tensor = manifest_.inputs[*inputs_[i]];
    if (is_replicated(tensor) || !inputs[i].isTensor()) continue;
    const at::Tensor& whole = inputs[i].toTensor();
    require(whole.defined(), "input ", tensor.name, " is an undefined tensor");
    const Sharding to = tensor.sharding(mesh_, whole.sizes().vec());
    inputs[i] = exec::redistribute(whole, replicated(to), to, {.may_alias = true});
  }
  return inputs;
}

/// A size that is known only when the program runs, of a dim that ranks hold in parts, is the sum
/// of the parts.
std::vector<int64_t> ShardedProgram::global_shape(const ManifestTensor& tensor,
                                                  const at::Tensor& local) const {
  std::vector<int64_t> shape = tensor.shape;
  for (size_t d = 0; d < shape.size(); ++d) {
    if (shape[d] != -1) continue;
    shape[d] = local.size(static_cast<int64_t>(d));
    std::vector<int> axes;
    for (size_t axis = 0; axis < tensor.placements.size(); ++axis) {
      const Placement& placement = tensor.placements[axis];
      if (placement.is_sharded(static_cast<int>(d)) && mesh_.size(static_cast<int>(axis)) > 1) {
        axes.push_back(static_cast<int>(axis));
      }
    }
    if (axes.empty()) continue;
    std::vector<at::Tensor> sum = {at::full({1}, shape[d], at::kLong)};
    comm::group_of(mesh_, axes)->backend(c10::kCPU).allreduce(sum)->wait();
    shape[d] = sum[0].item<int64_t>();
  }
  return shape;
}

Program::Values ShardedProgram::gather(Program::Values outputs) const {
  for (size_t i = 0; i < outputs.size(); ++i) {
    if (!outputs_[i] || !outputs[i].isTensor()) continue;
    const ManifestTensor& tensor = manifest_.outputs[*outputs_[i]];
    if (is_replicated(tensor)) continue;
    const at::Tensor& local = outputs[i].toTensor();
    const Sharding from = tensor.sharding(mesh_, global_shape(tensor, local));
    outputs[i] = exec::redistribute(local, from, replicated(from));
  }
  return outputs;
}

Program::Values ShardedProgram::run(Program::Values inputs) {
  return gather(program_.run(slice(std::move(inputs))));
}

Program::NamedValues ShardedProgram::run_named(const Program::NamedValues& inputs) {
  Program::Values values = run(program_.in_order(inputs));
  Program::NamedValues out;
  for (size_t i = 0; i < values.size(); ++i) {
    out.emplace_back(program_.outputs()[i].name, std::move(values[i]));
  }
  return out;
}

}  // namespace tessera
