#include "tests/support/training.h"

#include <ATen/Functions.h>

#include "tessera/base/text.h"
#include "tessera/dtensor/dtensor.h"
#include "tessera/module/distribute_module.h"

namespace tessera::test {

at::Tensor test_numbers(const std::vector<int64_t>& shape, uint64_t seed, int64_t below) {
  Rng rng(seed);
  at::Tensor out = at::empty(shape, below > 0 ? at::kLong : at::kDouble);
  for (int64_t i = 0; i < out.numel(); ++i) {
    if (below > 0) {
      out.mutable_data_ptr<int64_t>()[i] = rng.between(0, below - 1);
    } else {
      out.mutable_data_ptr<double>()[i] = static_cast<double>(rng.between(-99'999, 99'999)) / 1e5;
    }
  }
  return out;
}

void set_parameters(torch::nn::Module& module, uint64_t seed) {
  const at::NoGradGuard no_grad;
  module.to(at::kDouble);
  for (auto& parameter : module.parameters()) {
    parameter.copy_(test_numbers(parameter.sizes().vec(), ++seed) * 0.5);
  }
}

void shard_parameters(torch::nn::Module& module, const DeviceMesh& mesh,
                      const PlaceParameter& place) {
  for (auto& item : module.named_parameters()) {
    distribute_(item.value(), mesh, place(item.key(), item.value().dim()));
  }
  distribute_module(module, mesh);
}

std::vector<Placement> random_placements(Rng& rng, const DeviceMesh& mesh, int64_t ndim) {
  std::vector<Placement> out;
  for (int axis = 0; axis < mesh.ndim(); ++axis) {
    const int dim = rng.int_between(-1, static_cast<int>(ndim) - 1);
    out.push_back(dim < 0 ? Placement(Replicate()) : Placement(Shard(dim)));
  }
  return out;
}

Results run_step(const Instance& instance, const std::vector<at::Tensor>& inputs,
                 const std::function<at::Tensor(const at::Tensor& output)>& target) {
  Results out;
  const at::Tensor output = instance.call(inputs);
  const at::Tensor loss = at::mse_loss(output, target(output));
  loss.backward();
  out["output"] = output.detach();
  out["loss"] = loss.detach();
  for (size_t i = 0; i < inputs.size(); ++i) {
    if (inputs[i].requires_grad()) {
      out["gradient of input " + std::to_string(i)] = inputs[i].grad();
    }
  }
  for (const auto& item : instance.module->named_parameters()) {
    out["gradient of " + item.key()] = item.value().grad();
  }
  for (const auto& item : instance.module->named_buffers()) {
    out["buffer " + item.key()] = item.value();
  }
  return out;
}

std::string difference(const Results& got, const Results& expected) {
  std::string out;
  for (const auto& [name, want] : expected) {
    const auto found = got.find(name);
    const at::Tensor has = found == got.end() ? at::Tensor() : found->second;
    if (!has.defined() || !want.defined()) {
      if (has.defined() != want.defined()) out += name + " is there on one side only; ";
      continue;
    }
    const at::Tensor full = is_dtensor(has) ? full_tensor(has) : has;
    if (full.sizes() != want.sizes()) {
      out += join_text(name, " is ", shape_text(full.sizes()), ", not ", shape_text(want.sizes()),
                       "; ");
    } else if (!at::allclose(full, want, 1e-10, 1e-10)) {
      out += join_text(name, " is off by ", (full - want).abs().max().item<double>(), "; ");
    }
  }
  return out;
}

}  // namespace tessera::test
