// ProcessGroupGloo.hpp is empty without this; libtorch's pip builds always contain Gloo.
#ifndef USE_C10D_GLOO
#define USE_C10D_GLOO
#endif

#include "tessera/comm/gloo.h"

#include <ATen/ops/empty.h>

#include <cstdlib>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>
#include <torch/csrc/distributed/c10d/Utils.hpp>

#include "tessera/base/errors.h"
#include "tessera/comm/call_matching.h"

namespace tessera::comm {
namespace {

using c10::intrusive_ptr;
using c10d::ProcessGroupGloo;
using c10d::Work;
using Tensors = std::vector<at::Tensor>;

/// How Gloo's 32-bit tag of a collective is used: 14 bits of the sequence number, 16 of the digest,
/// 2 that stay free because Gloo counts up inside some calls.
constexpr int kSequenceShift = 18;
constexpr uint32_t kSequenceMask = 0x3fff;
constexpr int kDigestShift = 2;

uint32_t collective_tag(uint32_t sequence, uint32_t digest) {
  return (sequence & kSequenceMask) << kSequenceShift |
         (digest & 0xffff) << kDigestShift;
}

/// Tags of messages between two ranks are a user's non-negative int. Bit 30 says that we made it:
///   send, recv     bit 29 clear, 17 bits of the piece's hash, 12 bits of the user's tag
///   all_to_all     bit 29 set, 11 bits of the sequence number, 18 bits of the piece's hash
/// A user's tag of 4096 or more goes through as it is, without the mark.
constexpr int kMarked = 1 << 30;
constexpr int kAllToAll = 1 << 29;
constexpr int kUserTagBits = 12;
constexpr int kPieceBits = 18;

uint32_t piece_hash(const at::Tensor& piece) {
  const uint64_t key =
      static_cast<uint64_t>(piece.numel()) * 64 + static_cast<uint64_t>(piece.scalar_type());
  return static_cast<uint32_t>((key * 0x9e3779b97f4a7c15ULL) >> 40);  // 24 bits
}

int message_tag(int tag, const Tensors& tensors) {
  require(tag < kMarked, "send and recv over Gloo take tags below 2^30, got ", tag);
  const bool fits = tag >= 0 && tag < (1 << kUserTagBits);
  if (!fits || tensors.size() != 1 || !tensors[0].defined()) return tag;  // Gloo checks the rest
  const uint32_t hash = piece_hash(tensors[0]) >> 7;                      // 17 bits
  return kMarked | static_cast<int>(hash) << kUserTagBits | tag;
}

int all_to_all_tag(uint32_t collective_tag, const at::Tensor& piece) {
  const uint32_t sequence = collective_tag >> kSequenceShift & 0x7ff;
  const uint32_t hash = piece_hash(piece) >> 6;
  return kMarked | kAllToAll | static_cast<int>(sequence << kPieceBits | hash);
}

/// An all_to_all whose messages are already on their way; Gloo's worker thread waits for them.
class AllToAllWork final : public ProcessGroupGloo::AsyncWork {
 public:
  AllToAllWork(std::shared_ptr<gloo::Context> context, Tensors outputs, Tensors inputs,
               std::vector<intrusive_ptr<Work>> messages, uint64_t sequence,
               std::chrono::milliseconds timeout)
      : AsyncWork(std::move(context), {outputs}, c10d::OpType::ALLTOALL, sequence, timeout,
                  "gloo:all_to_all", inputs),
        outputs_(std::move(outputs)),
        inputs_(std::move(inputs)),
        messages_(std::move(messages)) {}

  void run() override {
    for (const auto& message : messages_) message->wait(getTimeout());
  }
  const std::vector<at::Tensor> getInputTensors() override { return inputs_; }
  const std::vector<at::Tensor> getOutputTensors() override { return outputs_; }

 private:
  Tensors outputs_;
  Tensors inputs_;
  std::vector<intrusive_ptr<Work>> messages_;
};

bool plain(const at::Tensor& t) {
  return t.defined() && t.layout() == at::kStrided && t.device().is_cpu() && t.is_contiguous();
}

/// The pieces of a contiguous tensor that go to, or come from, each rank.
Tensors pieces_of(const at::Tensor& whole, const std::vector<int64_t>& splits, int size) {
  const auto flat = whole.view({-1});
  const int64_t rows = whole.dim() == 0 ? 1 : whole.size(0);
  const int64_t row = rows == 0 ? 0 : whole.numel() / rows;
  Tensors pieces;
  int64_t at = 0;
  for (int i = 0; i < size; ++i) {
    const int64_t count =
        row * (splits.empty() ? rows / size : splits[static_cast<size_t>(i)]);
    pieces.push_back(flat.narrow(0, at, count));
    at += count;
  }
  return pieces;
}

class MatchedGloo final : public ProcessGroupGloo, public CallMatching {
 public:
  using ProcessGroupGloo::ProcessGroupGloo;

  /// Counts by itself: a CPU tap and a CUDA tap may share this backend.
  void announce(uint32_t digest) override {
    collectiveCounter_ = collective_tag(++announced_, digest);
  }

  intrusive_ptr<Work> send(Tensors& tensors, int to, int tag) override {
    return ProcessGroupGloo::send(tensors, to, message_tag(tag, tensors));
  }
  intrusive_ptr<Work> recv(Tensors& tensors, int from, int tag) override {
    return ProcessGroupGloo::recv(tensors, from, message_tag(tag, tensors));
  }
  intrusive_ptr<Work> recvAnysource(Tensors& tensors, int tag) override {
    return ProcessGroupGloo::recvAnysource(tensors, message_tag(tag, tensors));
  }

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
    return exchange(pieces_of(output, output_splits, size_), pieces_of(input, input_splits, size_),
                    options);
  }

  intrusive_ptr<Work> alltoall(Tensors& outputs, Tensors& inputs,
                               const c10d::AllToAllOptions& options) override {
    const auto n = static_cast<size_t>(size_);
    require(outputs.size() == n && inputs.size() == n, "all_to_all over ", size_, " ranks of ",
            inputs.size(), " inputs and ", outputs.size(), " outputs");
    for (size_t i = 0; i < n; ++i) {
      require(plain(outputs[i]) && plain(inputs[i]),
              "all_to_all over Gloo takes contiguous CPU tensors");
    }
    return exchange(outputs, inputs, options);
  }

  /// Closes the links: whatever waits on them, here and on the peers, ends with an error.
  void abort() override {
    for (const auto& context : contexts_) context->closeConnections();
  }

 private:
  /// All messages first, from this thread; the wait is Gloo's worker's. Empty pieces are not sent.
  intrusive_ptr<Work> exchange(Tensors outputs, Tensors inputs,
                               const c10d::AllToAllOptions& options) {
    const uint32_t tag = nextTag();
    const auto timeout =
        options.timeout == c10d::kUnsetTimeout ? options_->timeout : options.timeout;
    std::vector<intrusive_ptr<Work>> messages;
    for (int step = 1; step < size_; ++step) {
      const int from = (rank_ + size_ - step) % size_;
      Tensors one{outputs[static_cast<size_t>(from)]};
      if (one[0].numel() == 0) continue;
      messages.push_back(ProcessGroupGloo::recv(one, from, all_to_all_tag(tag, one[0])));
    }
    for (int step = 1; step < size_; ++step) {
      const int to = (rank_ + step) % size_;
      Tensors one{inputs[static_cast<size_t>(to)]};
      if (one[0].numel() == 0) continue;
      messages.push_back(ProcessGroupGloo::send(one, to, all_to_all_tag(tag, one[0])));
    }
    const auto& mine = inputs[static_cast<size_t>(rank_)];
    const auto& kept = outputs[static_cast<size_t>(rank_)];
    require(mine.numel() == kept.numel(), "all_to_all: this rank keeps ", mine.numel(),
            " elements but expects ", kept.numel(), " from itself");
    kept.view({-1}).copy_(mine.view({-1}));
    auto work = c10::make_intrusive<AllToAllWork>(getContext(tag), std::move(outputs),
                                                  std::move(inputs), std::move(messages), ++seq_,
                                                  timeout);
    enqueue(work);
    return work;
  }

  uint32_t announced_ = 0;
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
  return c10::make_intrusive<MatchedGloo>(options.store, options.index, options.size,
                                          std::move(gloo));
}

}  // namespace tessera::comm
