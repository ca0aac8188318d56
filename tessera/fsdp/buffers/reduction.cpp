#include "tessera/fsdp/buffers/reduction.h"

#include <ATen/ops/zeros.h>
#include <c10/core/ScalarType.h>

#include <algorithm>
#include <cstring>
#include <functional>
#include <string>
#include <utility>

#include "tessera/base/text.h"
#include "tessera/collective/call_matching.h"
#include "tessera/comm/world.h"
#include "tessera/fsdp/buffers/memory_views.h"
#include "tessera/observe/call_history.h"
#include "tessera/observe/call_site.h"
#include "tessera/observe/checked.h"

namespace tessera::fsdp {
namespace {

std::vector<at::Tensor> defined_ones(const std::vector<at::Tensor>& tensors) {
  std::vector<at::Tensor> out;
  for (const at::Tensor& tensor : tensors) {
    if (tensor.defined()) out.push_back(tensor);
  }
  return out;
}

/// Equivalent to div_. For small CPU tensors a plain loop avoids the dispatch overhead, which
/// exceeds the rest of a small group's reduction.
void divide(const at::Tensor& flat, double by) {
  constexpr int64_t kSmall = 4096;
  const auto in_place = [&]<class T>(T divisor) {
    T* values = flat.mutable_data_ptr<T>();
    for (int64_t i = 0; i < flat.numel(); ++i) values[i] /= divisor;
  };
  const bool small = flat.is_cpu() && flat.numel() <= kSmall;
  if (small && flat.scalar_type() == at::kFloat) {
    in_place(static_cast<float>(by));
  } else if (small && flat.scalar_type() == at::kDouble) {
    in_place(by);
  } else {
    flat.div_(by);
  }
}

bool is_only_holder(const at::Tensor& tensor) {
  return tensor.use_count() == 1 && tensor.storage().use_count() == 1;
}

/// The parameters that a rank has gradients of, "0,2-3 of 4", for the errors of checked mode.
std::string taken_text(const std::vector<bool>& taken) {
  std::string ranges;
  for (size_t begin = 0; begin < taken.size(); ++begin) {
    if (!taken[begin]) continue;
    size_t last = begin;
    while (last + 1 < taken.size() && taken[last + 1]) ++last;
    const std::string first = join_text(ranges.empty() ? "" : ",", begin);
    ranges += begin == last ? first : join_text(first, "-", last);
    begin = last;
  }
  return join_text("gradients of parameters ", ranges, " of ", taken.size(),
                   " (where ranks differ, set_reduce_unused_parameters)");
}

/// Ranks that have gradients of different parameters must not add them up: their messages may be
/// of one size.
uint64_t history_of(const std::vector<bool>& taken) {
  return std::hash<std::vector<bool>>()(taken) | comm::kGradientHistory;
}

}  // namespace

Reduction::Reduction(std::shared_ptr<const FlatLayout> layout, const DataMesh& mesh,
                     std::shared_ptr<const Collectives> collectives, How how,
                     StepLog::Message message)
    : layout_(std::move(layout)),
      mesh_(mesh),
      collectives_(std::move(collectives)),
      how_(how),
      taken_(layout_->params(), false),
      alone_(mesh.mesh().size() == 1 && collectives_ == with_defaults({})),
      wholes_(alone_ ? layout_->params() : 0),
      shared_(wholes_.size(), false),
      inputs_(layout_->slots().size()),
      message_(std::move(message)) {}

at::Tensor Reduction::flat(int64_t elements, at::ScalarType dtype, c10::Device device) const {
  const auto size = static_cast<int64_t>(c10::elementSize(dtype));
  return as_numbers(collectives_->allocate(elements * size, device), dtype);
}

Reduction::Input Reduction::zeros(size_t slot, c10::Device device) const {
  const Slot& of = layout_->slots()[slot];
  Input out{flat(of.piece * layout_->ranks(), of.dtype, device), true};
  if (out.flat.nbytes() == 0) return out;
  if (device.is_cpu()) {
    std::memset(out.flat.mutable_data_ptr(), 0, out.flat.nbytes());
  } else {
    out.flat.zero_();
  }
  return out;
}

void Reduction::add(size_t param, const at::Tensor& gradient) {
  const double before = how_.divide_by.before;
  if (before == 1) {
    take(param, gradient);
  } else {
    take(param, gradient.div(before));
  }
}

void Reduction::take(size_t param, const at::Tensor& gradient) {
  if (alone_) {
    add_alone(param, gradient);
  } else if (layout_->slots()[layout_->slot_of(param)].direct) {
    add_large(param, gradient);
  } else {
    add_small(param, gradient);
  }
  taken_[param] = true;
}

void Reduction::add_alone(size_t param, const at::Tensor& gradient) {
  if (wholes_[param].defined()) {
    writable_whole(param).add_(gradient);
    return;
  }
  const at::ScalarType dtype = layout_->param(param).dtype;
  const bool dense = gradient.is_contiguous() && gradient.scalar_type() == dtype;
  // Most gradients are the last view of a kernel's result; the view before it is still alive here,
  // so the count of the storage's references does not show it. What does: no other variable has the
  // tensor, and no other parameter has the memory (b and c in `(b.view(-1) + c.view(-1))`).
  if (dense && gradient.use_count() == 1 &&
      memory_of_wholes_.insert(gradient.storage().unsafeGetStorageImpl()).second) {
    wholes_[param] = gradient;
    shared_[param] = gradient.storage().use_count() > 1;
    return;
  }
  wholes_[param] = gradient.to(gradient.options().dtype(dtype), /*non_blocking=*/false,
                               /*copy=*/true, at::MemoryFormat::Contiguous);
}

at::Tensor& Reduction::writable_whole(size_t param) {
  if (shared_[param]) wholes_[param] = wholes_[param].clone();
  shared_[param] = false;
  return wholes_[param];
}

void Reduction::add_small(size_t param, const at::Tensor& gradient) {
  const size_t index = layout_->slot_of(param);
  Input& input = inputs_[index];
  // Zero-initialized: pieces of parameters without a gradient, and padding, are reduced as well.
  if (!input.flat.defined()) input = zeros(index, gradient.device());
  if (taken_[param]) {
    copy_pending();
    layout_->add_in(param, gradient, input.flat);
  } else if (!gradient.is_cpu()) {
    layout_->append_pieces(param, input.flat, gradient, pending_to_, pending_from_);
  } else {
    layout_->copy_in(param, gradient, input.flat);
  }
}

void Reduction::copy_pending() {
  copy_pieces(pending_to_, pending_from_);
  pending_to_.clear();
  pending_from_.clear();
}

void Reduction::add_large(size_t param, const at::Tensor& gradient) {
  const size_t index = layout_->slot_of(param);
  const Slot& slot = layout_->slots()[index];
  const int64_t room = slot.piece * layout_->ranks();
  Input& input = inputs_[index];
  if (taken_[param]) {
    const at::Tensor before = input.flat.narrow(0, 0, gradient.numel()).view(gradient.sizes());
    if (input.mine) {
      before.add_(gradient);
    } else {
      taken_[param] = false;
      add_large(param, before.add(gradient));
    }
    return;
  }
  if (gradient.numel() == room && gradient.is_contiguous() &&
      gradient.scalar_type() == slot.dtype) {
    const bool mine = is_only_holder(gradient);
    input = {gradient.view({room}), mine};
    return;
  }
  input = {flat(room, slot.dtype, gradient.device()), true};
  input.flat.narrow(0, 0, gradient.numel()).view(gradient.sizes()).copy_(gradient);
  input.flat.narrow(0, gradient.numel(), room - gradient.numel()).zero_();
}

void Reduction::add_zeros(size_t param, c10::Device device) {
  if (alone_) {
    const ParamShape& shape = layout_->param(param);
    if (!taken_[param])
      wholes_[param] = at::zeros(shape.whole, at::device(device).dtype(shape.dtype));
    taken_[param] = true;
    return;
  }
  Input& input = inputs_[layout_->slot_of(param)];
  if (!input.flat.defined()) input = zeros(layout_->slot_of(param), device);
  taken_[param] = true;
}

void Reduction::add_part(size_t param, at::Tensor shard) {
  add_zeros(param, shard.device());
  parts_.push_back({param, std::move(shard)});
}

void Reduction::start() {
  copy_pending();
  outputs_.resize(inputs_.size());
  if (mesh_.shard_group() != nullptr) {
    start_scatter();
    return;
  }
  for (size_t s = 0; s < inputs_.size(); ++s) {
    if (!inputs_[s].flat.defined()) continue;
    outputs_[s] = inputs_[s].mine ? inputs_[s].flat : inputs_[s].flat.clone();
  }
  end_scatter();
}

std::string Reduction::note_of_taken() const {
  return comm::checked(comm::world_of(mesh_.mesh())) ? taken_text(taken_) : std::string();
}

void Reduction::start_scatter() {
  Tensors in;
  for (size_t s = 0; s < inputs_.size(); ++s) {
    if (!inputs_[s].flat.defined()) continue;
    const Slot& slot = layout_->slots()[s];
    in.push_back(inputs_[s].flat);
    outputs_[s] = flat(slot.piece, slot.dtype, in.back().device());
  }
  Tensors out = defined_ones(outputs_);
  const std::string note = note_of_taken();
  const comm::CallSite site({.op = kSite, .axis = mesh_.shard_name(), .note = note});
  const comm::CallHistory history(history_of(taken_));
  work_ = collectives_->reduce_scatter(out, in, *mesh_.shard_group(), /*async=*/true);
  message_.note(StepLog::When::starts);
  under_way_ = scatters_ = true;
}

/// The outputs belong to this replica: kept parts are added before the all_reduce over replicas.
void Reduction::end_scatter() {
  inputs_.clear();
  for (const Part& part : parts_) {
    const at::Tensor to = alone_ ? writable_whole(part.param) : shard(part.param);
    to.add_(part.shard);
  }
  parts_.clear();
  if (how_.over_replicas) start_all_reduce();
}

void Reduction::start_all_reduce() {
  const auto* group = mesh_.replicate_group();
  Tensors tensors = defined_ones(outputs_);
  const std::string_view axis =
      group != nullptr ? std::string_view(mesh_.replicate_name()) : std::string_view();
  const std::string note = note_of_taken();
  const comm::CallSite site({.op = kSite, .axis = axis, .note = note});
  const comm::CallHistory history(history_of(taken_));
  work_ = collectives_->all_reduce(tensors, group, /*async=*/true);
  under_way_ = work_ != nullptr;
  if (under_way_) message_.note(StepLog::When::starts);
}

void Reduction::wait() {
  if (!under_way_) return;
  message_.note(StepLog::When::awaited);
  under_way_ = false;  // also if it throws
  if (const WorkPtr work = std::exchange(work_, nullptr)) work->wait();
  message_.note(StepLog::When::ends);
}

Reduction::Stage Reduction::advance() {
  if (std::exchange(scatters_, false)) {
    wait();
    end_scatter();
  }
  return work_ != nullptr ? Stage::under_way : Stage::ended;
}

void Reduction::finish() {
  advance();
  wait();
  const double after = how_.divide_by.after;
  if (!how_.over_replicas || after == 1) return;
  for (size_t i = 0; i < wholes_.size(); ++i) {
    if (wholes_[i].defined()) divide(writable_whole(i), after);
  }
  for (const at::Tensor& output : outputs_) {
    if (output.defined()) divide(output, after);
  }
}

void Reduction::abandon() {
  scatters_ = false;
  try {
    wait();
  } catch (const std::exception&) {  // the result is not needed
  }
}

at::Tensor Reduction::shard(size_t param) const {
  return alone_ ? wholes_[param] : layout_->shard_in(param, outputs_[layout_->slot_of(param)]);
}

}  // namespace tessera::fsdp
