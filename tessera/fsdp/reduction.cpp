#include "tessera/fsdp/reduction.h"

#include <ATen/ops/empty.h>

#include <torch/csrc/distributed/c10d/Backend.hpp>

#include "tessera/comm/block_pool.h"
#include "tessera/comm/call_site.h"

namespace tessera::fsdp {
namespace {

at::Tensor empty_flat(int64_t elements, at::ScalarType dtype, c10::Device device) {
  if (device.is_cpu()) return comm::pooled_empty({elements}, dtype);
  return at::empty({elements}, at::TensorOptions(dtype).device(device));
}

std::vector<at::Tensor> defined_ones(const std::vector<at::Tensor>& tensors) {
  std::vector<at::Tensor> out;
  for (const at::Tensor& tensor : tensors) {
    if (tensor.defined()) out.push_back(tensor);
  }
  return out;
}

}  // namespace

Reduction::Reduction(const FlatLayout& layout, const DataMesh& mesh, double divide_by)
    : layout_(layout),
      mesh_(mesh),
      divide_by_(divide_by),
      taken_(layout.params(), false),
      inputs_(layout.slots().size()) {}

/// Zeroed: pieces of parameters without a gradient, and padding, are reduced with the rest.
at::Tensor& Reduction::room_for(size_t slot, c10::Device device) {
  at::Tensor& room = inputs_[slot];
  if (!room.defined()) {
    const Slot& as = layout_.slots()[slot];
    room = empty_flat(as.piece * layout_.ranks(), as.dtype, device).zero_();
  }
  return room;
}

void Reduction::add(size_t param, const at::Tensor& gradient) {
  const size_t index = layout_.slot_of(param);
  const Slot& slot = layout_.slots()[index];
  taken_[param] = true;
  if (!slot.direct) {
    layout_.copy_in(param, gradient, room_for(index, gradient.device()));
    return;
  }
  const int64_t room = slot.piece * layout_.ranks();
  if (gradient.numel() == room && gradient.is_contiguous() &&
      gradient.scalar_type() == slot.dtype) {
    inputs_[index] = gradient.view({room});
    return;
  }
  at::Tensor input = empty_flat(room, slot.dtype, gradient.device());
  input.narrow(0, 0, gradient.numel()).view(layout_.param(param).whole).copy_(gradient);
  input.narrow(0, gradient.numel(), room - gradient.numel()).zero_();
  inputs_[index] = std::move(input);
}

void Reduction::start() {
  const auto* group = mesh_.shard_group();
  outputs_.resize(inputs_.size());
  if (group == nullptr) {  // what is reduced next is the gradients' own memory where it is a copy
    for (size_t s = 0; s < inputs_.size(); ++s) {
      if (!inputs_[s].defined()) continue;
      outputs_[s] = layout_.slots()[s].direct ? inputs_[s].clone() : inputs_[s];
    }
    return;
  }
  for (size_t s = 0; s < inputs_.size(); ++s) {
    if (!inputs_[s].defined()) continue;
    const Slot& slot = layout_.slots()[s];
    outputs_[s] = empty_flat(slot.piece, slot.dtype, inputs_[s].device());
  }
  std::vector<at::Tensor> in = defined_ones(inputs_);
  std::vector<at::Tensor> out = defined_ones(outputs_);
  const comm::CallSite site({.op = "fully_shard", .axis = mesh_.shard_name()});
  auto& backend = group->backend(in[0].device().type());
  c10d::ReduceScatterOptions options;
  options.reduceOp = c10d::ReduceOp::SUM;
  options.asyncOp = true;
  work_ = in.size() == 1 ? backend._reduce_scatter_base(out[0], in[0], options)
                         : backend.reduce_scatter_tensor_coalesced(out, in, options);
}

void Reduction::all_reduce_replicas() {
  const auto* group = mesh_.replicate_group();
  if (group == nullptr) return;
  std::vector<at::Tensor> tensors = defined_ones(outputs_);
  const comm::CallSite site({.op = "fully_shard", .axis = mesh_.replicate_name()});
  auto& backend = group->backend(tensors[0].device().type());
  if (tensors.size() == 1) {
    backend.allreduce(tensors, {})->wait();
  } else {
    backend.allreduce_coalesced(tensors, {})->wait();
  }
}

void Reduction::finish() {
  if (work_ != nullptr) work_->wait();
  work_.reset();
  inputs_.clear();
  all_reduce_replicas();
  if (divide_by_ == 1) return;
  for (const at::Tensor& output : defined_ones(outputs_)) output.div_(divide_by_);
}

void Reduction::abandon() {
  if (work_ != nullptr) work_->wait();
  work_.reset();
}

at::Tensor Reduction::shard(size_t param) const {
  return layout_.shard_in(param, outputs_[layout_.slot_of(param)]);
}

}  // namespace tessera::fsdp
