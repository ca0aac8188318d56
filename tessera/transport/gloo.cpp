#include "tessera/transport/gloo.h"

#include <ATen/core/Tensor.h>

#include <algorithm>
#include <atomic>
#include <thread>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>
#include <torch/csrc/distributed/c10d/Utils.hpp>

#include "tessera/base/errors.h"
#include "tessera/collective/algorithms/exchange_work.h"
#include "tessera/collective/algorithms/make_algorithm.h"
#include "tessera/collective/algorithms/message_tags.h"
#include "tessera/collective/algorithms/out_of_place_all_reduce.h"
#include "tessera/collective/algorithms/pipelined_pack.h"
#include "tessera/collective/call_matching.h"
#include "tessera/collective/reduce.h"
#include "tessera/transport/gloo_devices.h"
#include "tessera/transport/socket_transport.h"
#include "tessera/transport/sockets.h"

namespace tessera::comm {
namespace {

using c10::intrusive_ptr;
using c10d::ProcessGroupGloo;
using c10d::Work;
using Tensors = std::vector<at::Tensor>;
using TensorLists = std::vector<std::vector<at::Tensor>>;

/// c10d stores the name of the call that ended last in a std::string that Gloo's worker threads
/// assign without a lock. Names of up to 15 characters stay inside the string object; longer ones
/// are freed twice if two calls end concurrently. So calls are queued under short names.
c10d::OpType short_named(c10d::OpType type) {
  switch (type) {
    case c10d::OpType::_REDUCE_SCATTER_BASE:
      return c10d::OpType::REDUCE_SCATTER;
    case c10d::OpType::ALLGATHER_COALESCED:
      return c10d::OpType::ALLGATHER;
    case c10d::OpType::ALLREDUCE_COALESCED:
      return c10d::OpType::ALLREDUCE;
    default:
      return type;
  }
}

/// An asynchronous call: Gloo's worker thread sends and receives its messages.
class WorkerWork final : public ProcessGroupGloo::AsyncWork {
 public:
  WorkerWork(std::shared_ptr<gloo::Context> context, JobPtr job, std::shared_ptr<Exchange> exchange,
             uint64_t sequence, std::chrono::milliseconds timeout)
      : AsyncWork(std::move(context), {job->outputs}, short_named(job->type), sequence, timeout,
                  job->title, job->inputs),
        job_(std::move(job)),
        exchange_(std::move(exchange)) {}

  void run() override { job_->finish(*exchange_); }
  const Tensors getInputTensors() override { return job_->inputs; }
  const Tensors getOutputTensors() override { return job_->outputs; }

 private:
  JobPtr job_;
  std::shared_ptr<Exchange> exchange_;
};

class MatchedGloo final : public ProcessGroupGloo,
                          public CallMatching,
                          public OutOfPlaceAllReduce,
                          public PipelinedPack,
                          public EndsSending,
                          private Transport {
 public:
  /// Without our own sockets, messages use Gloo's connections.
  MatchedGloo(const intrusive_ptr<c10d::Store>& store, int rank, int size,
              intrusive_ptr<Options> options, std::vector<Socket> sockets)
      : ProcessGroupGloo(store, rank, size, std::move(options)) {
    if (sockets.empty()) {
      transport_ =
          std::shared_ptr<Transport>(std::shared_ptr<void>(), static_cast<Transport*>(this));
    } else {
      transport_ = sockets_ = std::make_shared<SocketTransport>(std::move(sockets));
    }
  }

  /// The worker threads end with the base class, but their calls use members of this one: waits for
  /// pending calls, at most until their timeout, as the base class would.
  ~MatchedGloo() override {
    while (!idle()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }

  /// Counts calls itself: a CPU tap and a CUDA tap may share this backend.
  void announce(uint32_t digest, uint64_t history) override {
    const auto mixed = static_cast<uint32_t>((history * 0x9e3779b97f4a7c15ULL) >> 40);
    collectiveCounter_ = message_tags::collective(++announced_, digest ^ mixed);
  }
  bool blocks_on_mismatch() const override { return true; }

  intrusive_ptr<Work> send(Tensors& tensors, int to, int tag) override {
    return ProcessGroupGloo::send(tensors, to, marked(tag, tensors));
  }
  intrusive_ptr<Work> recv(Tensors& tensors, int from, int tag) override {
    return ProcessGroupGloo::recv(tensors, from, marked(tag, tensors));
  }
  intrusive_ptr<Work> recvAnysource(Tensors& tensors, int tag) override {
    return ProcessGroupGloo::recvAnysource(tensors, marked(tag, tensors));
  }

  // all_to_all is implemented here because only tags per piece can detect that two ranks disagree
  // on a size; all_gather and the reductions because Gloo's copy more (into a flat buffer and
  // back), send more (its reduce_scatter is an all_reduce) or wait more (its all_reduce).

  intrusive_ptr<Work> alltoall_base(at::Tensor& output, at::Tensor& input,
                                    std::vector<int64_t>& output_splits,
                                    std::vector<int64_t>& input_splits,
                                    const c10d::AllToAllOptions& options) override {
    if (!is_plain(output) || !is_plain(input)) {
      return ProcessGroupGloo::alltoall_base(output, input, output_splits, input_splits, options);
    }
    require(output.scalar_type() == input.scalar_type(), "all_to_all_single of ",
            c10::toString(input.scalar_type()), " into ", c10::toString(output.scalar_type()));
    c10d::checkSplitSizes(input_splits, input, size_);
    c10d::checkSplitSizes(output_splits, output, size_);
    return start(all_to_all_job(pieces_of(output, output_splits, size_),
                                pieces_of(input, input_splits, size_), place()),
                 options);
  }

  intrusive_ptr<Work> all_to_all_packing(at::Tensor& output, Unpacked input,
                                         std::vector<int64_t>& output_splits,
                                         const c10d::AllToAllOptions& options) override {
    require(is_plain(output) && !options.asyncOp && output_splits.size() == input.splits.size() &&
                output_splits.size() == static_cast<size_t>(size_),
            "all_to_all_packing is a synchronous call into a contiguous CPU tensor, with splits");
    c10d::checkSplitSizes(output_splits, output, size_);
    return start(packing_all_to_all_job(output, output_splits, std::move(input), place()), options);
  }

  intrusive_ptr<Work> alltoall(Tensors& outputs, Tensors& inputs,
                               const c10d::AllToAllOptions& options) override {
    const auto n = static_cast<size_t>(size_);
    require(outputs.size() == n && inputs.size() == n, "all_to_all over ", size_, " ranks of ",
            inputs.size(), " inputs and ", outputs.size(), " outputs");
    require(std::ranges::all_of(outputs, is_plain) && std::ranges::all_of(inputs, is_plain),
            "all_to_all over Gloo takes contiguous CPU tensors");
    return start(all_to_all_job(outputs, inputs, place()), options);
  }

  intrusive_ptr<Work> _allgather_base(at::Tensor& output, at::Tensor& input,
                                      const c10d::AllgatherOptions& options) override {
    if (!gathers(output, input, size_)) {
      return ProcessGroupGloo::_allgather_base(output, input, options);
    }
    return start(gather_job(output, input, size_), options);
  }

  intrusive_ptr<Work> allgather_into_tensor_coalesced(
      Tensors& outputs, Tensors& inputs, const c10d::AllgatherOptions& options) override {
    const auto goes = [&](const at::Tensor& output, const at::Tensor& input) {
      return gathers(output, input, size_);
    };
    if (!std::ranges::equal(outputs, inputs, goes)) {
      return alone([&] {
        return ProcessGroupGloo::allgather_into_tensor_coalesced(outputs, inputs, options);
      });
    }
    std::vector<JobPtr> jobs;
    for (size_t i = 0; i < inputs.size(); ++i) {
      jobs.push_back(gather_job(outputs[i], inputs[i], size_));
    }
    return start(job_list(std::move(jobs), c10d::OpType::ALLGATHER_COALESCED), options);
  }

  intrusive_ptr<Work> allgather_coalesced(TensorLists& outputs, Tensors& inputs,
                                          const c10d::AllgatherOptions& options) override {
    return alone([&] { return ProcessGroupGloo::allgather_coalesced(outputs, inputs, options); });
  }

  intrusive_ptr<Work> _reduce_scatter_base(at::Tensor& output, at::Tensor& input,
                                           const c10d::ReduceScatterOptions& options) override {
    if (!reducible(output, input, options.reduceOp) || input.numel() != output.numel() * size_) {
      return alone([&] { return ProcessGroupGloo::_reduce_scatter_base(output, input, options); });
    }
    check_reduce(Collective::reduce_scatter_tensor, options.reduceOp, input.scalar_type());
    return start(reduce_scatter_job(output, pieces_of(input, {}, size_), options.reduceOp),
                 options);
  }

  intrusive_ptr<Work> reduce_scatter_tensor_coalesced(
      Tensors& outputs, Tensors& inputs, const c10d::ReduceScatterOptions& options) override {
    const auto goes = [&](const at::Tensor& output, const at::Tensor& input) {
      return reducible(output, input, options.reduceOp) && input.numel() == output.numel() * size_;
    };
    if (!std::ranges::equal(outputs, inputs, goes)) {
      return alone([&] {
        return ProcessGroupGloo::reduce_scatter_tensor_coalesced(outputs, inputs, options);
      });
    }
    std::vector<JobPtr> jobs;
    for (size_t i = 0; i < inputs.size(); ++i) {
      check_reduce(Collective::reduce_scatter_tensor_coalesced, options.reduceOp,
                   inputs[i].scalar_type());
      jobs.push_back(
          reduce_scatter_job(outputs[i], pieces_of(inputs[i], {}, size_), options.reduceOp));
    }
    return start(job_list(std::move(jobs), c10d::OpType::_REDUCE_SCATTER_BASE), options);
  }

  intrusive_ptr<Work> reduce_scatter(Tensors& outputs, TensorLists& inputs,
                                     const c10d::ReduceScatterOptions& options) override {
    const auto n = static_cast<size_t>(size_);
    const auto goes_with_output = [&](const at::Tensor& t) {
      return reducible(outputs[0], t, options.reduceOp) && t.numel() == outputs[0].numel();
    };
    const bool fits = outputs.size() == 1 && inputs.size() == 1 && inputs[0].size() == n &&
                      std::ranges::all_of(inputs[0], goes_with_output);
    if (!fits) return ProcessGroupGloo::reduce_scatter(outputs, inputs, options);
    check_reduce(Collective::reduce_scatter, options.reduceOp, outputs[0].scalar_type());
    return start(reduce_scatter_job(outputs[0], inputs[0], options.reduceOp), options);
  }

  intrusive_ptr<Work> allreduce(Tensors& tensors, const c10d::AllreduceOptions& options) override {
    if (tensors.size() != 1 || !reducible(tensors[0], tensors[0], options.reduceOp)) {
      return ProcessGroupGloo::allreduce(tensors, options);
    }
    return all_reduce_into(tensors[0], tensors[0], options);
  }

  intrusive_ptr<Work> allreduce_coalesced(Tensors& tensors,
                                          const c10d::AllreduceCoalescedOptions& options) override {
    const auto goes = [&](const at::Tensor& t) { return reducible(t, t, options.reduceOp); };
    if (!std::ranges::all_of(tensors, goes)) {
      return alone([&] { return ProcessGroupGloo::allreduce_coalesced(tensors, options); });
    }
    std::vector<JobPtr> jobs;
    for (const at::Tensor& tensor : tensors) {
      check_reduce(Collective::all_reduce_coalesced, options.reduceOp, tensor.scalar_type());
      jobs.push_back(all_reduce_job(tensor, tensor, options.reduceOp, place()));
    }
    return start(job_list(std::move(jobs), c10d::OpType::ALLREDUCE_COALESCED), options);
  }

  intrusive_ptr<Work> all_reduce_into(at::Tensor& output, at::Tensor& input,
                                      const c10d::AllreduceOptions& options) override {
    if (!reducible(output, input, options.reduceOp) || output.numel() != input.numel()) {
      output.copy_(input);
      Tensors tensors = {output};
      return ProcessGroupGloo::allreduce(tensors, options);
    }
    check_reduce(Collective::all_reduce, options.reduceOp, input.scalar_type());
    return start(all_reduce_job(output, input, options.reduceOp, place()), options);
  }

  /// Closes the connections: calls that wait at the peers end with an error, and so do the
  /// message-based calls here. A pending call of Gloo's own cannot be interrupted; it ends at its
  /// timeout. Because the destructor would wait for that, a thread keeps this object alive until
  /// then.
  void abort() override {
    if (aborted_.exchange(true)) return;
    for (const auto& context : contexts_) context->closeConnections();
    if (sockets_ != nullptr) sockets_->close();
    {
      std::lock_guard lock(exchanges_mutex_);
      for (const auto& weak : exchanges_) {
        if (const auto exchange = weak.lock()) exchange->cancel();
      }
    }
    if (idle()) return;
    std::thread([self = intrusive_ptr<MatchedGloo>::unsafe_reclaim_from_nonowning(this)] {
      while (!self->idle()) std::this_thread::sleep_for(std::chrono::milliseconds(100));
    }).detach();
  }

  void end_sending() noexcept override {
    if (sockets_ != nullptr && idle()) sockets_->end_sending();
  }

  /// Pending calls are not needed any more: ends them, so that the destructor does not wait.
  void shutdown() override { abort(); }

 private:
  RankOf place() const { return {rank_, size_}; }

  static int marked(int tag, const Tensors& tensors) {
    require(tag < message_tags::kMarked, "send and recv over Gloo take tags below 2^30, got ", tag);
    const bool sound = tensors.size() == 1 && tensors[0].defined();  // else Gloo reports the error
    return sound ? message_tags::message(tag, tensors[0]) : tag;
  }

  bool sends_ahead() const override { return false; }
  intrusive_ptr<Work> send_piece(at::Tensor piece, int to, int tag) override {
    Tensors one{std::move(piece)};
    return ProcessGroupGloo::send(one, to, tag);
  }
  intrusive_ptr<Work> receive_piece(at::Tensor piece, int from, int tag) override {
    Tensors one{std::move(piece)};
    return ProcessGroupGloo::recv(one, from, tag);
  }

  /// A synchronous caller makes progress itself; otherwise Gloo's worker thread does.
  template <typename Options>
  intrusive_ptr<Work> start(JobPtr job, const Options& options) {
    const auto timeout =
        options.timeout == c10d::kUnsetTimeout ? options_->timeout : options.timeout;
    const uint32_t tag = nextTag();
    auto exchange =
        std::make_shared<Exchange>(transport_, Exchange::Group{rank_, size_, tag}, timeout);
    {
      std::lock_guard lock(exchanges_mutex_);
      std::erase_if(exchanges_, [](const auto& weak) { return weak.expired(); });
      exchanges_.push_back(exchange);
    }
    if (!options.asyncOp) {
      return c10::make_intrusive<CallerWork>(
          intrusive_ptr<MatchedGloo>::unsafe_reclaim_from_nonowning(this), std::move(job),
          std::move(exchange), ++seq_);
    }
    job->begin(*exchange);
    std::lock_guard lock(queue_mutex_);  // alone() waits for an empty queue
    auto work = c10::make_intrusive<WorkerWork>(getContext(tag), std::move(job),
                                                std::move(exchange), ++seq_, timeout);
    enqueue(work);
    return work;
  }

  /// Runs one of Gloo's own calls that has a long name (see short_named) while no other call can
  /// end.
  template <typename Call>
  intrusive_ptr<Work> alone(const Call& call) {
    std::lock_guard lock(queue_mutex_);
    while (!idle()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    intrusive_ptr<Work> work = call();
    while (!idle()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    return work;
  }

  bool idle() {
    std::lock_guard lock(workMutex_);
    return workQueue_.empty() &&
           std::ranges::none_of(workInProgress_, [](const auto& work) { return work.defined(); });
  }

  std::shared_ptr<Transport> transport_;
  std::shared_ptr<SocketTransport> sockets_;  // the same, if they are our own
  uint32_t announced_ = 0;
  std::atomic<bool> aborted_{false};
  std::mutex queue_mutex_;
  std::mutex exchanges_mutex_;
  std::vector<std::weak_ptr<Exchange>> exchanges_;  // in flight, and some that ended
};

}  // namespace

intrusive_ptr<c10d::Backend> make_gloo_backend(const GlooOptions& options) {
  auto gloo = ProcessGroupGloo::Options::create(options.timeout);
  gloo->devices = gloo_devices(options.address);
  gloo->threads = 2 * static_cast<int>(gloo->devices.size());  // as in PyTorch
  if (!options.matched) {
    return c10::make_intrusive<ProcessGroupGloo>(options.store, options.index, options.size,
                                                 std::move(gloo));
  }
  std::vector<Socket> sockets =
      connect_ranks(*options.store, {.rank = options.index,
                                     .size = options.size,
                                     .address = named_interfaces().empty() ? options.address : "",
                                     .timeout = options.timeout,
                                     .secret = options.secret,
                                     .look_around = options.look_around});
  return c10::make_intrusive<MatchedGloo>(options.store, options.index, options.size,
                                          std::move(gloo), std::move(sockets));
}

}  // namespace tessera::comm
