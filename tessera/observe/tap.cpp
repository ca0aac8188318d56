#include "tessera/observe/tap.h"

#include <torch/csrc/autograd/graph_task.h>

#include <torch/csrc/distributed/c10d/Backend.hpp>

#include "tessera/base/errors.h"
#include "tessera/collective/algorithms/out_of_place_all_reduce.h"
#include "tessera/collective/algorithms/pipelined_pack.h"
#include "tessera/collective/call_backend.h"
#include "tessera/collective/call_matching.h"
#include "tessera/collective/describe_call.h"
#include "tessera/collective/may_block.h"
#include "tessera/collective/work_list.h"
#include "tessera/observe/call_history.h"
#include "tessera/observe/call_site.h"
#include "tessera/observe/checked.h"
#include "tessera/observe/recorder.h"
#include "tessera/observe/tap_context.h"
#include "tessera/observe/tap_work.h"

namespace tessera::comm {
namespace {

using c10::intrusive_ptr;
using c10d::Work;
using Tensors = std::vector<at::Tensor>;
using TensorLists = std::vector<std::vector<at::Tensor>>;

/// A rank that has waited this long in one call checks what the others do.
constexpr auto kLookAfter = std::chrono::milliseconds(5000);

constexpr int kNoBackward = -1;

CommEvent event_of(const TapContext& context, const CallInfo& info) {
  const CallSiteFields& site = CallSite::current();
  CommEvent event;
  event.op = info.op();
  event.group = context.group;
  event.site = site.op.empty() ? "user" : std::string(site.op);
  event.axis = std::string(site.axis);
  event.implicit = site.implicit;
  event.in_backward = torch::autograd::get_current_graph_task_id() != kNoBackward;
  event.async = info.async;
  event.dtype = info.dtype;
  event.shapes_in = info.in.to_vectors();
  event.shapes_out = info.in_place ? event.shapes_in : info.out.to_vectors();
  event.bytes_in = info.bytes_in;
  event.bytes_out = info.in_place ? info.bytes_in : info.bytes_out;
  event.start = Clock::now();
  return event;
}

/// Formatted only if an error needs it.
struct CallText {
  const TapContext& context;
  const TappedCall& call;
  std::string to_text() const { return call_text(context, call); }
};

class TapBackend final : public c10d::Backend, public OutOfPlaceAllReduce, public PipelinedPack {
 public:
  TapBackend(intrusive_ptr<c10d::Backend> inner, GroupInfo info,
             std::shared_ptr<ObserverState> state)
      : Backend(inner->getRank(), inner->getSize()),
        inner_(std::move(inner)),
        matching_(dynamic_cast<CallMatching*>(inner_.get())),
        reads_values_(dynamic_cast<CallBackend*>(inner_.get()) != nullptr),
        reaches_processes_(getSize() > 1 && state->board_now() != nullptr) {
    auto context = std::make_shared<TapContext>();
    context->state = std::move(state);
    context->channel = context->state->add_tap(info.name, inner_);
    context->group = std::make_shared<const GroupInfo>(std::move(info));
    if (matching_ != nullptr && matching_->blocks_on_mismatch()) {
      context->look_after =
          std::min<std::chrono::milliseconds>(kLookAfter, inner_->getBackendOptions()->timeout / 4);
    }
    context_ = std::move(context);
    // A group created by the user keeps its name.
    if (inner_->getGroupUid().empty()) inner_->setGroupUid(context_->group->name);
    setGroupUid(context_->group->name);
  }

  // The collectives: one line each describes inputs and outputs; issue() does the rest.

  intrusive_ptr<Work> broadcast(Tensors& t, const c10d::BroadcastOptions& o) override {
    return issue(describe(Collective::broadcast, t, InPlace{}, o),
                 [&] { return inner_->broadcast(t, o); });
  }
  intrusive_ptr<Work> allreduce(Tensors& t, const c10d::AllreduceOptions& o) override {
    return issue(describe(Collective::all_reduce, t, InPlace{}, o),
                 [&] { return inner_->allreduce(t, o); });
  }
  intrusive_ptr<Work> all_reduce_into(at::Tensor& out, at::Tensor& in,
                                      const c10d::AllreduceOptions& o) override {
    return issue(describe(Collective::all_reduce, in, InPlace{}, o),
                 [&] { return comm::all_reduce_into(*inner_, out, in, o); });
  }
  intrusive_ptr<Work> allreduce_sparse(Tensors& t, const c10d::AllreduceOptions& o) override {
    return issue(describe(Collective::all_reduce_sparse, t, InPlace{}, o),
                 [&] { return inner_->allreduce_sparse(t, o); });
  }
  intrusive_ptr<Work> allreduce_coalesced(Tensors& t,
                                          const c10d::AllreduceCoalescedOptions& o) override {
    return issue(describe(Collective::all_reduce_coalesced, t, InPlace{}, o),
                 [&] { return inner_->allreduce_coalesced(t, o); });
  }
  intrusive_ptr<Work> reduce(Tensors& t, const c10d::ReduceOptions& o) override {
    return issue(describe(Collective::reduce, t, InPlace{}, o),
                 [&] { return inner_->reduce(t, o); });
  }
  intrusive_ptr<Work> allgather(TensorLists& out, Tensors& in,
                                const c10d::AllgatherOptions& o) override {
    return issue(describe(Collective::all_gather, in, out, o),
                 [&] { return inner_->allgather(out, in, o); });
  }
  intrusive_ptr<Work> _allgather_base(at::Tensor& out, at::Tensor& in,
                                      const c10d::AllgatherOptions& o) override {
    return issue(describe(Collective::all_gather_into_tensor, in, out, o),
                 [&] { return inner_->_allgather_base(out, in, o); });
  }
  intrusive_ptr<Work> allgather_coalesced(TensorLists& out, Tensors& in,
                                          const c10d::AllgatherOptions& o) override {
    return issue(describe(Collective::all_gather_coalesced, in, out, o),
                 [&] { return inner_->allgather_coalesced(out, in, o); });
  }
  intrusive_ptr<Work> allgather_into_tensor_coalesced(Tensors& out, Tensors& in,
                                                      const c10d::AllgatherOptions& o) override {
    return issue(describe(Collective::all_gather_into_tensor_coalesced, in, out, o),
                 [&] { return inner_->allgather_into_tensor_coalesced(out, in, o); });
  }
  intrusive_ptr<Work> gather(TensorLists& out, Tensors& in, const c10d::GatherOptions& o) override {
    return issue(describe(Collective::gather, in, out, o),
                 [&] { return inner_->gather(out, in, o); });
  }
  intrusive_ptr<Work> scatter(Tensors& out, TensorLists& in,
                              const c10d::ScatterOptions& o) override {
    return issue(describe(Collective::scatter, in, out, o),
                 [&] { return inner_->scatter(out, in, o); });
  }
  intrusive_ptr<Work> reduce_scatter(Tensors& out, TensorLists& in,
                                     const c10d::ReduceScatterOptions& o) override {
    return issue(describe(Collective::reduce_scatter, in, out, o),
                 [&] { return inner_->reduce_scatter(out, in, o); });
  }
  intrusive_ptr<Work> _reduce_scatter_base(at::Tensor& out, at::Tensor& in,
                                           const c10d::ReduceScatterOptions& o) override {
    return issue(describe(Collective::reduce_scatter_tensor, in, out, o),
                 [&] { return inner_->_reduce_scatter_base(out, in, o); });
  }
  intrusive_ptr<Work> reduce_scatter_tensor_coalesced(
      Tensors& out, Tensors& in, const c10d::ReduceScatterOptions& o) override {
    return issue(describe(Collective::reduce_scatter_tensor_coalesced, in, out, o),
                 [&] { return inner_->reduce_scatter_tensor_coalesced(out, in, o); });
  }
  intrusive_ptr<Work> alltoall_base(at::Tensor& out, at::Tensor& in,
                                    std::vector<int64_t>& out_splits,
                                    std::vector<int64_t>& in_splits,
                                    const c10d::AllToAllOptions& o) override {
    auto info = describe(Collective::all_to_all_single, in, out, o);
    info.splits_in.append(in_splits.begin(), in_splits.end());
    info.splits_out.append(out_splits.begin(), out_splits.end());
    return issue(std::move(info),
                 [&] { return inner_->alltoall_base(out, in, out_splits, in_splits, o); });
  }
  intrusive_ptr<Work> all_to_all_packing(at::Tensor& out, Unpacked in,
                                         std::vector<int64_t>& out_splits,
                                         const c10d::AllToAllOptions& o) override {
    auto info = describe(Collective::all_to_all_single, InPlace{}, out, o);
    const int64_t numel = in.numel();
    info.in.add({numel});
    info.bytes_in = numel * static_cast<int64_t>(out.element_size());
    info.splits_in.append(in.splits.begin(), in.splits.end());
    info.splits_out.append(out_splits.begin(), out_splits.end());
    return issue(std::move(info), [&] {
      return comm::all_to_all_packing(*inner_, out, std::move(in), out_splits, o);
    });
  }
  intrusive_ptr<Work> alltoall(Tensors& out, Tensors& in, const c10d::AllToAllOptions& o) override {
    return issue(describe(Collective::all_to_all, in, out, o),
                 [&] { return inner_->alltoall(out, in, o); });
  }
  intrusive_ptr<Work> barrier(const c10d::BarrierOptions& o) override {
    return issue(describe(Collective::barrier, InPlace{}, InPlace{}, o),
                 [&] { return inner_->barrier(o); });
  }
  void monitoredBarrier(const c10d::BarrierOptions& o, bool all) override {
    issue(describe(Collective::barrier, InPlace{}, InPlace{}, o), [&]() -> intrusive_ptr<Work> {
      inner_->monitoredBarrier(o, all);
      return {};
    });
  }
  intrusive_ptr<Work> send(Tensors& t, int to, int tag) override {
    return issue(describe_peer(Collective::send, t, to, tag),
                 [&] { return inner_->send(t, to, tag); });
  }
  intrusive_ptr<Work> recv(Tensors& t, int from, int tag) override {
    return issue(describe_peer(Collective::recv, t, from, tag),
                 [&] { return inner_->recv(t, from, tag); });
  }
  intrusive_ptr<Work> recvAnysource(Tensors& t, int tag) override {
    return issue(describe_peer(Collective::recv_any_source, t, -1, tag),
                 [&] { return inner_->recvAnysource(t, tag); });
  }

  // The rest is forwarded to the inner backend.

  const std::string getBackendName() const override { return inner_->getBackendName(); }
  intrusive_ptr<Options> getBackendOptions() override { return inner_->getBackendOptions(); }
  bool supportsSplitting() const override { return inner_->supportsSplitting(); }
  bool supportsCoalescing() const override { return inner_->supportsCoalescing(); }
  bool supportsTimeEstimation() const override { return inner_->supportsTimeEstimation(); }
  bool supportsShrinking() const override { return inner_->supportsShrinking(); }
  void setTimeout(std::chrono::milliseconds timeout) override { inner_->setTimeout(timeout); }
  void startCoalescing() override { inner_->startCoalescing(); }
  intrusive_ptr<Work> endCoalescing() override {
    const MayBlock others_may_run;
    return inner_->endCoalescing();
  }
  void setSequenceNumberForGroup() override { inner_->setSequenceNumberForGroup(); }
  uint64_t getSequenceNumberForGroup() override { return inner_->getSequenceNumberForGroup(); }
  void registerOnCompletionHook(
      std::function<void(std::shared_ptr<c10d::WorkInfo>)>&& hook) override {
    inner_->registerOnCompletionHook(std::move(hook));
  }
  void waitForPendingWorks() override {
    const MayBlock others_may_run;
    inner_->waitForPendingWorks();
  }
  void enableCollectivesTiming() override { inner_->enableCollectivesTiming(); }
  void eagerConnectSingleDevice(at::Device device) override {
    inner_->eagerConnectSingleDevice(device);
  }
  c10d::ErrorType getError() override { return inner_->getError(); }
  std::shared_ptr<c10::Allocator> getMemAllocator() override { return inner_->getMemAllocator(); }
  at::Tensor allocateTensor(long size, at::TensorOptions options) override {
    return inner_->allocateTensor(size, options);
  }
  bool supportsTensorAlloc(c10::DeviceIndex device) override {
    return inner_->supportsTensorAlloc(device);
  }
  void abort() override { inner_->abort(); }
  void shutdown() override { inner_->shutdown(); }
  intrusive_ptr<Backend> shrink(const std::vector<int64_t>& excluded, int flags,
                                const intrusive_ptr<Options>& options) override {
    return inner_->shrink(excluded, flags, options);
  }
  intrusive_ptr<Backend> merge(const intrusive_ptr<c10d::Store>& store,
                               const intrusive_ptr<Options>& options, const int& rank,
                               const int& size) override {
    return inner_->merge(store, options, rank, size);
  }
  intrusive_ptr<Backend> split(const intrusive_ptr<c10d::Store>& store,
                               const std::vector<int>& ranks,
                               const intrusive_ptr<Options>& options) override {
    auto part = inner_->split(store, ranks, options);
    if (!part) return part;
    GroupInfo info{.ranks = {},
                   .index = part->getRank(),
                   .name = options ? options->group_name : context_->group->name + "/split",
                   .world_name = context_->group->world_name};
    for (const int rank : ranks) {
      info.ranks.push_back(context_->group->ranks.at(static_cast<size_t>(rank)));
    }
    return c10::make_intrusive<TapBackend>(std::move(part), std::move(info), context_->state);
  }

 private:
  template <typename Run>
  intrusive_ptr<Work> issue(CallInfo info, const Run& run) {
    check_implicit();
    const MayBlock others_may_run;
    TappedCall call{std::move(info)};
    require(!call.info.lazy_view || reads_values_, CallText{*context_, call},
            ": a tensor is conjugated or negated by a bit, and its memory holds other values; give "
            "x.resolve_conj().resolve_neg()");
    // Its messages would be taken for the rank's.
    require(!reaches_processes_ || context_->state->is_ours(), CallText{*context_, call},
            ": this process was forked from the rank, whose connections it must not use; "
            "communicate in the rank, or start the process without fork");
    if (call.info.op() != CommOp::send && call.info.op() != CommOp::recv) {
      call.sequence = sequence_.fetch_add(1, std::memory_order_relaxed) + 1;
      call.history = CallHistory::current();
      if (matching_ != nullptr) matching_->announce(digest(call.info), call.history);
    }
    std::shared_ptr<EventRecord> record;
    if (context_->state->active.load(std::memory_order_acquire) != 0) [[unlikely]] {
      record = observe(call);
    }
    try {
      auto work = [&] {
        const EventRecord::ExposedTimer exposed(record.get());
        return run();
      }();
      if (work && record == nullptr && is_done_work(*work)) return work;  // it cannot fail any more
      if (work) {
        return c10::make_intrusive<TapWork>(std::move(work), context_, std::move(call),
                                            std::move(record));
      }
      // NCCL runs blocking calls on the caller's stream and returns nothing to wait for.
      if (record) record->finish(true);
      return done_work(c10d::OpType::UNKNOWN, {});
    } catch (...) {
      if (record) record->finish(false);
      rethrow_as_tessera(*context_, call, CallPhase::issue);
    }
  }

  /// The slow path: compares with the other ranks in checked mode, and notifies the recorders.
  std::shared_ptr<EventRecord> observe(const TappedCall& call) {
    ObserverState& state = *context_->state;
    std::shared_ptr<CollectiveCheck> check;
    std::vector<std::shared_ptr<EventLog>> logs;
    {
      std::lock_guard lock(state.mutex);
      logs = state.logs;
      if ((state.active.load() & ObserverState::kChecked) != 0) check = state.check;
    }
    if (check && call.sequence != 0) {
      try {
        check->before(*context_, call, CallSite::current().note);
      } catch (...) {
        rethrow_as_tessera(*context_, call, CallPhase::wait);
      }
    }
    if (logs.empty()) return nullptr;
    auto record = std::make_shared<EventRecord>(event_of(*context_, call.info));
    for (const auto& log : logs) log->add(record);
    return record;
  }

  intrusive_ptr<c10d::Backend> inner_;
  CallMatching* matching_;  // inner_, if it supports it
  bool reads_values_;       // uses ATen; others send a tensor's raw bytes
  bool reaches_processes_;  // over connections that a forked child shares
  std::shared_ptr<const TapContext> context_;
  std::atomic<uint64_t> sequence_{0};
};

}  // namespace

intrusive_ptr<c10d::Backend> tap(intrusive_ptr<c10d::Backend> inner, GroupInfo info,
                                 Observers& observers) {
  ensure(inner.defined(), "a tap needs a backend");
  return c10::make_intrusive<TapBackend>(std::move(inner), std::move(info), observers.state());
}

}  // namespace tessera::comm
