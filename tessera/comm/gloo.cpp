// ProcessGroupGloo.hpp is empty without this; libtorch's pip builds always contain Gloo.
#ifndef USE_C10D_GLOO
#define USE_C10D_GLOO
#endif

#include "tessera/comm/gloo.h"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <thread>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>
#include <torch/csrc/distributed/c10d/Utils.hpp>

#include "tessera/base/errors.h"
#include "tessera/comm/call_matching.h"
#include "tessera/comm/gloo_tags.h"
#include "tessera/comm/thread_reduce.h"

namespace tessera::comm {
namespace {

using c10::intrusive_ptr;
using c10d::ProcessGroupGloo;
using c10d::Work;
using Tensors = std::vector<at::Tensor>;
using TensorLists = std::vector<std::vector<at::Tensor>>;

/// A collective made of messages between pairs. Gloo's worker thread sends and awaits them: woken
/// once for the whole call, as for Gloo's own (sending from the caller's thread was slower).
class ExchangeWork final : public ProcessGroupGloo::AsyncWork {
 public:
  struct Job {
    c10d::OpType type;
    const char* title;
    Tensors outputs;
    Tensors inputs;
    std::function<void(std::chrono::milliseconds timeout)> run;
  };

  ExchangeWork(std::shared_ptr<gloo::Context> context, Job job, uint64_t sequence,
               std::chrono::milliseconds timeout)
      : AsyncWork(std::move(context), {job.outputs}, job.type, sequence, timeout, job.title,
                  job.inputs),
        job_(std::move(job)) {}

  void run() override { job_.run(getTimeout()); }
  const Tensors getInputTensors() override { return job_.inputs; }
  const Tensors getOutputTensors() override { return job_.outputs; }

 private:
  Job job_;
};

bool plain(const at::Tensor& t) {
  return t.defined() && t.layout() == at::kStrided && t.device().is_cpu() && t.is_contiguous();
}

/// A contiguous tensor cut into the pieces that go to, or come from, each rank.
Tensors pieces_of(const at::Tensor& whole, const std::vector<int64_t>& splits, int size) {
  const auto flat = whole.view({-1});
  const int64_t rows = whole.dim() == 0 ? 1 : whole.size(0);
  const int64_t row = rows == 0 ? 0 : whole.numel() / rows;
  Tensors pieces;
  int64_t at = 0;
  for (int i = 0; i < size; ++i) {
    const int64_t count = splits.empty() ? whole.numel() / size : row * splits[size_t(i)];
    pieces.push_back(flat.narrow(0, at, count));
    at += count;
  }
  return pieces;
}

void copy_elements(const at::Tensor& to, const at::Tensor& from) {
  std::memcpy(to.data_ptr(), from.const_data_ptr(), from.nbytes());  // both plain, equally long
}

class MatchedGloo final : public ProcessGroupGloo, public CallMatching {
 public:
  using ProcessGroupGloo::ProcessGroupGloo;

  /// Counts by itself: a CPU tap and a CUDA tap may share this backend.
  void announce(uint32_t digest) override {
    collectiveCounter_ = gloo_tags::collective(++announced_, digest);
  }

  intrusive_ptr<Work> send(Tensors& tensors, int to, int tag) override {
    return ProcessGroupGloo::send(tensors, to, marked(tag, tensors));
  }
  intrusive_ptr<Work> recv(Tensors& tensors, int from, int tag) override {
    return ProcessGroupGloo::recv(tensors, from, marked(tag, tensors));
  }
  intrusive_ptr<Work> recvAnysource(Tensors& tensors, int tag) override {
    return ProcessGroupGloo::recvAnysource(tensors, marked(tag, tensors));
  }

  // all_to_all is done here because only the pieces' own tags can tell that two ranks disagree on
  // the size of one; all_gather and reduce_scatter because Gloo's copy more (into a flat buffer and
  // out again) and send more (its reduce_scatter is an all_reduce).

  intrusive_ptr<Work> alltoall_base(at::Tensor& output, at::Tensor& input,
                                    std::vector<int64_t>& output_splits,
                                    std::vector<int64_t>& input_splits,
                                    const c10d::AllToAllOptions& options) override {
    if (!plain(output) || !plain(input)) {
      return ProcessGroupGloo::alltoall_base(output, input, output_splits, input_splits, options);
    }
    require(output.scalar_type() == input.scalar_type(), "all_to_all_single of ",
            c10::toString(input.scalar_type()), " into ", c10::toString(output.scalar_type()));
    c10d::checkSplitSizes(input_splits, input, size_);
    c10d::checkSplitSizes(output_splits, output, size_);
    return all_to_all(pieces_of(output, output_splits, size_),
                      pieces_of(input, input_splits, size_), options);
  }

  intrusive_ptr<Work> alltoall(Tensors& outputs, Tensors& inputs,
                               const c10d::AllToAllOptions& options) override {
    const auto n = static_cast<size_t>(size_);
    require(outputs.size() == n && inputs.size() == n, "all_to_all over ", size_, " ranks of ",
            inputs.size(), " inputs and ", outputs.size(), " outputs");
    require(std::ranges::all_of(outputs, plain) && std::ranges::all_of(inputs, plain),
            "all_to_all over Gloo takes contiguous CPU tensors");
    return all_to_all(outputs, inputs, options);
  }

  intrusive_ptr<Work> _allgather_base(at::Tensor& output, at::Tensor& input,
                                      const c10d::AllgatherOptions& options) override {
    const bool fits = plain(output) && plain(input) && output.numel() == input.numel() * size_ &&
                      output.scalar_type() == input.scalar_type();
    if (!fits) return ProcessGroupGloo::_allgather_base(output, input, options);
    const uint32_t tag = nextTag();
    const auto run = [=, this](std::chrono::milliseconds timeout) {
      const Tensors inputs(static_cast<size_t>(size_), input.view({-1}));
      const Tensors outputs = pieces_of(output, {}, size_);
      exchange(tag, outputs, inputs, timeout);
    };
    return start({c10d::OpType::_ALLGATHER_BASE, "gloo:all_gather", {output}, {input}, run}, tag,
                 options.timeout);
  }

  intrusive_ptr<Work> _reduce_scatter_base(at::Tensor& output, at::Tensor& input,
                                           const c10d::ReduceScatterOptions& options) override {
    const bool fits = plain(output) && plain(input) && input.numel() == output.numel() * size_ &&
                      output.scalar_type() == input.scalar_type() &&
                      options.reduceOp.op_ != c10d::ReduceOp::PREMUL_SUM;
    if (!fits) return ProcessGroupGloo::_reduce_scatter_base(output, input, options);
    check_reduce(Collective::reduce_scatter_tensor, options.reduceOp, input.scalar_type());
    return reduce_scatter_pieces(output, pieces_of(input, {}, size_), options);
  }

  intrusive_ptr<Work> reduce_scatter(Tensors& outputs, TensorLists& inputs,
                                     const c10d::ReduceScatterOptions& options) override {
    const auto n = static_cast<size_t>(size_);
    const auto like_output = [&](const at::Tensor& t) {
      return plain(t) && t.numel() == outputs[0].numel() &&
             t.scalar_type() == outputs[0].scalar_type();
    };
    const bool fits = outputs.size() == 1 && inputs.size() == 1 && inputs[0].size() == n &&
                      plain(outputs[0]) && std::ranges::all_of(inputs[0], like_output) &&
                      options.reduceOp.op_ != c10d::ReduceOp::PREMUL_SUM;
    if (!fits) return ProcessGroupGloo::reduce_scatter(outputs, inputs, options);
    check_reduce(Collective::reduce_scatter, options.reduceOp, outputs[0].scalar_type());
    return reduce_scatter_pieces(outputs[0], inputs[0], options);
  }

  /// Closes the links: whatever waits on the other side of them ends with an error. What waits here
  /// cannot be woken; it ends at its timeout, and because the destructor would wait for that, a
  /// thread keeps this object until then.
  void abort() override {
    if (aborted_.exchange(true)) return;
    for (const auto& context : contexts_) context->closeConnections();
    if (idle()) return;
    std::thread([self = intrusive_ptr<MatchedGloo>::unsafe_reclaim_from_nonowning(this)] {
      while (!self->idle()) std::this_thread::sleep_for(std::chrono::milliseconds(100));
    }).detach();
  }

 private:
  size_t me() const { return static_cast<size_t>(rank_); }

  static int marked(int tag, const Tensors& tensors) {
    require(tag < gloo_tags::kMarked, "send and recv over Gloo take tags below 2^30, got ", tag);
    const bool sound = tensors.size() == 1 && tensors[0].defined();  // else Gloo says what is wrong
    return sound ? gloo_tags::message(tag, tensors[0]) : tag;
  }

  intrusive_ptr<Work> all_to_all(Tensors outputs, Tensors inputs,
                                 const c10d::AllToAllOptions& options) {
    require(inputs[me()].numel() == outputs[me()].numel(), "all_to_all: this rank keeps ",
            inputs[me()].numel(), " elements but expects ", outputs[me()].numel(), " from itself");
    const uint32_t tag = nextTag();
    const auto run = [=, this](std::chrono::milliseconds timeout) {
      exchange(tag, outputs, inputs, timeout);
    };
    return start({c10d::OpType::ALLTOALL, "gloo:all_to_all", outputs, inputs, run}, tag,
                 options.timeout);
  }

  /// Every rank sends each other one its piece and adds up its own, in the order of ranks: the same
  /// bits as thread ranks give.
  intrusive_ptr<Work> reduce_scatter_pieces(const at::Tensor& output, const Tensors& inputs,
                                            const c10d::ReduceScatterOptions& options) {
    const uint32_t tag = nextTag();
    const auto run = [=, this, op = options.reduceOp.op_](std::chrono::milliseconds timeout) {
      Tensors parts;
      for (int i = 0; i < size_; ++i) {
        parts.push_back(i == rank_ ? inputs[me()] : at::empty({output.numel()}, output.options()));
      }
      exchange(tag, parts, inputs, timeout);
      std::vector<const void*> sources;
      for (const auto& part : parts) sources.push_back(part.const_data_ptr());
      void* target = output.data_ptr();
      reduce_flat(output.scalar_type(), {.op = op, .factors = {}}, sources, {&target, 1},
                  output.numel());
    };
    return start({c10d::OpType::_REDUCE_SCATTER_BASE, "gloo:reduce_scatter", {output}, inputs, run},
                 tag, options.timeout);
  }

  /// Sends inputs[j] to rank j, receives outputs[j] from it, and returns when all is done. Empty
  /// pieces are not sent.
  void exchange(uint32_t tag, const Tensors& outputs, const Tensors& inputs,
                std::chrono::milliseconds timeout) {
    std::vector<intrusive_ptr<Work>> messages;
    for (int step = 1; step < size_; ++step) {
      const int from = (rank_ + size_ - step) % size_;
      Tensors one{outputs[static_cast<size_t>(from)]};
      if (one[0].numel() == 0) continue;
      messages.push_back(ProcessGroupGloo::recv(one, from, gloo_tags::exchange(tag, one[0])));
    }
    for (int step = 1; step < size_; ++step) {
      const int to = (rank_ + step) % size_;
      Tensors one{inputs[static_cast<size_t>(to)]};
      if (one[0].numel() == 0) continue;
      messages.push_back(ProcessGroupGloo::send(one, to, gloo_tags::exchange(tag, one[0])));
    }
    const auto& kept = outputs[me()];
    if (!kept.is_same(inputs[me()])) copy_elements(kept, inputs[me()]);
    for (const auto& message : messages) message->wait(timeout);
  }

  intrusive_ptr<Work> start(ExchangeWork::Job job, uint32_t tag,
                            std::chrono::milliseconds timeout) {
    if (timeout == c10d::kUnsetTimeout) timeout = options_->timeout;
    auto work = c10::make_intrusive<ExchangeWork>(getContext(tag), std::move(job), ++seq_, timeout);
    enqueue(work);
    return work;
  }

  bool idle() {
    std::lock_guard lock(workMutex_);
    return workQueue_.empty() &&
           std::ranges::none_of(workInProgress_, [](const auto& work) { return work.defined(); });
  }

  uint32_t announced_ = 0;
  std::atomic<bool> aborted_{false};
};

std::vector<std::shared_ptr<::gloo::transport::Device>> devices_for(const GlooOptions& options) {
  std::vector<std::shared_ptr<::gloo::transport::Device>> devices;
  const char* named = std::getenv("GLOO_SOCKET_IFNAME");
  if (named != nullptr && *named != '\0') {
    std::string_view rest(named);
    while (!rest.empty()) {
      const size_t comma = std::min(rest.find(','), rest.size());
      const std::string interface(rest.substr(0, comma));
      rest.remove_prefix(std::min(comma + 1, rest.size()));
      if (interface.empty()) continue;
      devices.push_back(ProcessGroupGloo::createDeviceForInterface(interface));
    }
  } else if (!options.address.empty()) {
    devices.push_back(ProcessGroupGloo::createDeviceForHostname(options.address));
  } else {
    devices.push_back(ProcessGroupGloo::createDefaultDevice());
  }
  return devices;
}

}  // namespace

intrusive_ptr<c10d::Backend> make_gloo_backend(const GlooOptions& options) {
  auto gloo = ProcessGroupGloo::Options::create(options.timeout);
  gloo->devices = devices_for(options);
  gloo->threads = 2 * static_cast<int>(gloo->devices.size());  // as PyTorch does
  if (!options.matched) {
    return c10::make_intrusive<ProcessGroupGloo>(options.store, options.index, options.size,
                                                 std::move(gloo));
  }
  return c10::make_intrusive<MatchedGloo>(options.store, options.index, options.size,
                                          std::move(gloo));
}

}  // namespace tessera::comm
