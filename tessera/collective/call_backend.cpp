#include "tessera/collective/call_backend.h"

#include <ATen/core/LegacyTypeDispatch.h>

#include <algorithm>
#include <array>

#include "tessera/base/errors.h"
#include "tessera/collective/work_list.h"

namespace tessera::comm {
namespace {

using enum Collective;
using Tensors = CallBackend::Tensors;

TensorRow row(const Tensors& tensors) { return TensorRow(tensors.begin(), tensors.end()); }

TensorRow flattened(const std::vector<Tensors>& lists) {
  TensorRow all;
  for (const auto& list : lists) all.append(list.begin(), list.end());
  return all;
}

/// c10d's lists of lists have one entry per device of the process; here each rank has one device.
TensorRow only_list(Collective what, const std::vector<Tensors>& lists) {
  require(lists.size() <= 1, collective_name(what), ": ", lists.size(),
          " lists of tensors; give one");
  return flattened(lists);
}

void require_one(Collective what, const Tensors& tensors) {
  require(tensors.size() == 1, collective_name(what), ": ", tensors.size(),
          " tensors where one is expected; the coalesced forms take several");
}

/// A tensor that is split into pieces must be contiguous; an input may be copied.
at::Tensor readable(const at::Tensor& t) {
  if (!t.defined() || t.is_contiguous()) return t;
  at::AutoDispatchBelowADInplaceOrView below_autograd;
  return t.contiguous();
}

/// "1,2,0", formatted only if an error needs it.
struct SplitsText {
  const std::vector<int64_t>& splits;
  std::string to_text() const { return list_text(splits); }
};

/// Prefix sums in elements of splits given in rows; no splits means equal ones.
std::vector<int64_t> offsets(const at::Tensor& t, const std::vector<int64_t>& splits, int size,
                             std::string_view role) {
  const int64_t rows = t.dim() == 0 ? 1 : t.size(0);
  std::vector<int64_t> sums(1, 0);
  if (splits.empty()) {
    require(rows % size == 0, "all_to_all_single: the ", role, " has ", rows, " rows, which ", size,
            " ranks cannot share equally; give split sizes");
    for (int i = 1; i <= size; ++i) sums.push_back(t.numel() / size * i);
    return sums;
  }
  require(static_cast<int>(splits.size()) == size, "all_to_all_single: ", splits.size(), " ", role,
          " splits for ", size, " ranks");
  int64_t sum = 0;
  for (const int64_t split : splits) {
    require(split >= 0, "all_to_all_single: a negative ", role, " split: ", SplitsText{splits});
    sum += split;
    sums.push_back(rows == 0 ? 0 : sum * (t.numel() / rows));
  }
  require(sum == rows, "all_to_all_single: the ", role, " splits ", SplitsText{splits},
          " add up to ", sum, ", the ", role, " has ", rows, " rows");
  return sums;
}

}  // namespace

c10::intrusive_ptr<c10d::Backend::Options> CallBackend::getBackendOptions() {
  return c10::make_intrusive<Options>(getBackendName(), timeout_);
}

CallBackend::WorkPtr CallBackend::collect(WorkPtr work) {
  if (coalescing_) coalescing_->push_back(work);
  return work;
}

CallBackend::WorkPtr CallBackend::issue(Call call, std::chrono::milliseconds timeout) {
  return collect(post(std::move(call), timeout > kNoTimeout ? timeout : timeout_));
}

CallBackend::WorkPtr CallBackend::issue_message(Call call, int peer, int tag) {
  return collect(post_message(std::move(call), peer, tag, timeout_));
}

CallBackend::WorkPtr CallBackend::broadcast(Tensors& tensors, const c10d::BroadcastOptions& opts) {
  require_one(Collective::broadcast, tensors);
  return issue({.what = Collective::broadcast,
                .root = static_cast<int>(opts.rootRank),
                .outputs = row(tensors)},
               opts.timeout);
}

CallBackend::WorkPtr CallBackend::allreduce(Tensors& tensors, const c10d::AllreduceOptions& opts) {
  require_one(all_reduce, tensors);
  return issue({.what = all_reduce, .reduce = opts.reduceOp, .outputs = row(tensors)},
               opts.timeout);
}

CallBackend::WorkPtr CallBackend::allreduce_sparse(Tensors& tensors,
                                                   const c10d::AllreduceOptions& opts) {
  require_one(all_reduce_sparse, tensors);
  require(opts.reduceOp.op_ == c10d::ReduceOp::SUM, "all_reduce of sparse tensors only sums");
  return issue({.what = all_reduce_sparse, .outputs = row(tensors)}, opts.timeout);
}

CallBackend::WorkPtr CallBackend::allreduce_coalesced(Tensors& tensors,
                                                      const c10d::AllreduceCoalescedOptions& opts) {
  return issue({.what = all_reduce_coalesced, .reduce = opts.reduceOp, .outputs = row(tensors)},
               opts.timeout);
}

CallBackend::WorkPtr CallBackend::reduce(Tensors& tensors, const c10d::ReduceOptions& opts) {
  require_one(Collective::reduce, tensors);
  return issue({.what = Collective::reduce,
                .reduce = opts.reduceOp,
                .root = static_cast<int>(opts.rootRank),
                .outputs = row(tensors)},
               opts.timeout);
}

CallBackend::WorkPtr CallBackend::allgather(std::vector<Tensors>& outputs, Tensors& inputs,
                                            const c10d::AllgatherOptions& opts) {
  return issue(
      {.what = all_gather, .inputs = row(inputs), .outputs = only_list(all_gather, outputs)},
      opts.timeout);
}

CallBackend::WorkPtr CallBackend::_allgather_base(at::Tensor& output, at::Tensor& input,
                                                  const c10d::AllgatherOptions& opts) {
  return issue({.what = all_gather_into_tensor, .inputs = {input}, .outputs = {output}},
               opts.timeout);
}

CallBackend::WorkPtr CallBackend::allgather_coalesced(std::vector<Tensors>& outputs,
                                                      Tensors& inputs,
                                                      const c10d::AllgatherOptions& opts) {
  return issue({.what = all_gather_coalesced, .inputs = row(inputs), .outputs = flattened(outputs)},
               opts.timeout);
}

CallBackend::WorkPtr CallBackend::allgather_into_tensor_coalesced(
    Tensors& outputs, Tensors& inputs, const c10d::AllgatherOptions& opts) {
  return issue(
      {.what = all_gather_into_tensor_coalesced, .inputs = row(inputs), .outputs = row(outputs)},
      opts.timeout);
}

CallBackend::WorkPtr CallBackend::gather(std::vector<Tensors>& outputs, Tensors& inputs,
                                         const c10d::GatherOptions& opts) {
  return issue({.what = Collective::gather,
                .root = static_cast<int>(opts.rootRank),
                .inputs = row(inputs),
                .outputs = only_list(Collective::gather, outputs)},
               opts.timeout);
}

CallBackend::WorkPtr CallBackend::scatter(Tensors& outputs, std::vector<Tensors>& inputs,
                                          const c10d::ScatterOptions& opts) {
  return issue({.what = Collective::scatter,
                .root = static_cast<int>(opts.rootRank),
                .inputs = only_list(Collective::scatter, inputs),
                .outputs = row(outputs)},
               opts.timeout);
}

CallBackend::WorkPtr CallBackend::reduce_scatter(Tensors& outputs, std::vector<Tensors>& inputs,
                                                 const c10d::ReduceScatterOptions& opts) {
  return issue({.what = Collective::reduce_scatter,
                .reduce = opts.reduceOp,
                .inputs = only_list(Collective::reduce_scatter, inputs),
                .outputs = row(outputs)},
               opts.timeout);
}

CallBackend::WorkPtr CallBackend::_reduce_scatter_base(at::Tensor& output, at::Tensor& input,
                                                       const c10d::ReduceScatterOptions& opts) {
  return issue({.what = reduce_scatter_tensor,
                .reduce = opts.reduceOp,
                .inputs = {readable(input)},
                .outputs = {output}},
               opts.timeout);
}

CallBackend::WorkPtr CallBackend::reduce_scatter_tensor_coalesced(
    Tensors& outputs, Tensors& inputs, const c10d::ReduceScatterOptions& opts) {
  TensorRow rows;
  for (const auto& input : inputs) rows.push_back(readable(input));
  return issue({.what = Collective::reduce_scatter_tensor_coalesced,
                .reduce = opts.reduceOp,
                .inputs = std::move(rows),
                .outputs = row(outputs)},
               opts.timeout);
}

CallBackend::WorkPtr CallBackend::alltoall_base(at::Tensor& output, at::Tensor& input,
                                                std::vector<int64_t>& output_splits,
                                                std::vector<int64_t>& input_splits,
                                                const c10d::AllToAllOptions& opts) {
  require(output.defined() && input.defined(), "all_to_all_single: a tensor is undefined");
  Call call{.what = all_to_all_single, .inputs = {readable(input)}, .outputs = {output}};
  try {
    call.input_offsets = offsets(input, input_splits, size_, "input");
    call.output_offsets = offsets(output, output_splits, size_, "output");
  } catch (const InvalidArgument& error) {
    call.mistake = error.what();  // posted anyway: the other ranks must get the error
  }
  return issue(std::move(call), opts.timeout);
}

CallBackend::WorkPtr CallBackend::alltoall(Tensors& outputs, Tensors& inputs,
                                           const c10d::AllToAllOptions& opts) {
  return issue({.what = all_to_all, .inputs = row(inputs), .outputs = row(outputs)}, opts.timeout);
}

CallBackend::WorkPtr CallBackend::send(Tensors& tensors, int to, int tag) {
  require_one(Collective::send, tensors);
  require(to >= 0, "send: to group index ", to);
  return issue_message({.what = Collective::send, .inputs = row(tensors)}, to, tag);
}

CallBackend::WorkPtr CallBackend::recv(Tensors& tensors, int from, int tag) {
  require_one(Collective::recv, tensors);
  require(from >= 0, "recv: from group index ", from);
  return issue_message({.what = Collective::recv, .outputs = row(tensors)}, from, tag);
}

CallBackend::WorkPtr CallBackend::recvAnysource(Tensors& tensors, int tag) {
  require_one(recv_any_source, tensors);
  return issue_message({.what = recv_any_source, .outputs = row(tensors)}, -1, tag);
}

CallBackend::WorkPtr CallBackend::barrier(const c10d::BarrierOptions& opts) {
  return issue({.what = Collective::barrier}, opts.timeout);
}

void CallBackend::monitoredBarrier(const c10d::BarrierOptions& opts, bool /*wait_all_ranks*/) {
  // Every timeout here names all absent ranks, so both modes are the same.
  barrier(opts)->wait();
}

void CallBackend::startCoalescing() {
  require(!coalescing_, "startCoalescing was called twice without endCoalescing between");
  coalescing_.emplace();
}

CallBackend::WorkPtr CallBackend::endCoalescing() {
  require(coalescing_.has_value(), "endCoalescing without startCoalescing");
  return all_of(*std::exchange(coalescing_, std::nullopt));
}

std::span<const c10::DeviceType> all_device_types() {
  static constexpr std::array<c10::DeviceType, 6> kTypes = {
      c10::DeviceType::CPU, c10::DeviceType::CUDA, c10::DeviceType::Meta,
      c10::DeviceType::XPU, c10::DeviceType::MPS,  c10::DeviceType::PrivateUse1};
  return kTypes;
}

}  // namespace tessera::comm
