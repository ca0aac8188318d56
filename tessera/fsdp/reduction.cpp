#include "tessera/fsdp/reduction.h"

#include <c10/core/ScalarType.h>

#include "tessera/comm/call_site.h"

namespace tessera::fsdp {
namespace {

std::vector<at::Tensor> defined_ones(const std::vector<at::Tensor>& tensors) {
  std::vector<at::Tensor> out;
  for (const at::Tensor& tensor : tensors) {
    if (tensor.defined()) out.push_back(tensor);
  }
  return out;
}

}  // namespace

Reduction::Reduction(const FlatLayout& layout, const DataMesh& mesh, const Collectives& collectives,
                     DivideBy divide_by)
    : layout_(layout),
      mesh_(mesh),
      collectives_(collectives),
      divide_by_(divide_by),
      taken_(layout.params(), false),
      inputs_(layout.slots().size()) {}

at::Tensor Reduction::flat(int64_t elements, at::ScalarType dtype, c10::Device device) const {
  const auto size = static_cast<int64_t>(c10::elementSize(dtype));
  return collectives_.allocate(elements * size, device).view(dtype);
}

/// Zeroed: pieces of parameters without a gradient, and padding, are reduced with the rest.
at::Tensor& Reduction::room_for(size_t slot, c10::Device device) {
  at::Tensor& room = inputs_[slot];
  if (!room.defined()) {
    const Slot& as = layout_.slots()[slot];
    room = flat(as.piece * layout_.ranks(), as.dtype, device).zero_();
  }
  return room;
}

void Reduction::add(size_t param, const at::Tensor& given) {
  const at::Tensor gradient = divide_by_.before == 1 ? given : given.div(divide_by_.before);
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
  at::Tensor input = flat(room, slot.dtype, gradient.device());
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
    outputs_[s] = flat(slot.piece, slot.dtype, inputs_[s].device());
  }
  std::vector<at::Tensor> in = defined_ones(inputs_);
  std::vector<at::Tensor> out = defined_ones(outputs_);
  const comm::CallSite site({.op = "fully_shard", .axis = mesh_.shard_name()});
  work_ = collectives_.reduce_scatter(out, in, *group, /*async=*/true);
}

void Reduction::all_reduce_replicas() {
  const auto* group = mesh_.replicate_group();
  Tensors tensors = defined_ones(outputs_);
  const comm::CallSite site(
      {.op = "fully_shard",
       .axis = group != nullptr ? std::string_view(mesh_.replicate_name()) : std::string_view()});
  collectives_.all_reduce(tensors, group);
}

void Reduction::finish() {
  if (work_ != nullptr) work_->wait();
  work_.reset();
  inputs_.clear();
  all_reduce_replicas();
  if (divide_by_.after == 1) return;
  for (const at::Tensor& output : defined_ones(outputs_)) output.div_(divide_by_.after);
}

void Reduction::abandon() {
  if (work_ != nullptr) work_->wait();
  work_.reset();
}

at::Tensor Reduction::shard(size_t param) const {
  return layout_.shard_in(param, outputs_[layout_.slot_of(param)]);
}

}  // namespace tessera::fsdp
