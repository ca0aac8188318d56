#include "tessera/comm/fake.h"

#include <algorithm>
#include <atomic>
#include <cstring>

#include "tessera/base/errors.h"
#include "tessera/collective/call_backend.h"
#include "tessera/collective/move.h"
#include "tessera/collective/work_list.h"
#include "tessera/comm/processes.h"

namespace tessera::comm {
namespace {

class FakeBackend final : public CallBackend {
 public:
  FakeBackend(int index, int size) : CallBackend(index, size, kDefaultTimeout) {}

  const std::string getBackendName() const override { return "tessera_fake"; }
  uint64_t getSequenceNumberForGroup() override { return posted_; }
  c10d::ErrorType getError() override { return c10d::ErrorType::SUCCESS; }

 private:
  WorkPtr post(Call call, std::chrono::milliseconds /*timeout*/) override {
    check_call(call, rank_, size_);
    ++posted_;
    const at::Tensor* lead = call.lead();
    if (lead != nullptr && !lead->device().is_meta()) fill(call);
    return done_work(c10d_op_type(call.what), Tensors(call.outputs.begin(), call.outputs.end()));
  }

  WorkPtr post_message(Call call, int /*peer*/, int /*tag*/,
                       std::chrono::milliseconds /*timeout*/) override {
    check_call(call, rank_, size_);
    return done_work(c10d_op_type(call.what), Tensors(call.outputs.begin(), call.outputs.end()));
  }

  /// As if every rank had made the same call.
  void fill(const Call& call) const {
    const CommOp op = comm_op(call.what);
    if (op == CommOp::all_reduce || op == CommOp::reduce || op == CommOp::broadcast) return;
    if (call.what == Collective::all_gather_into_tensor && repeat(call)) return;
    const int sources = call.reduces() ? 1 : size_;
    for (int from = 0; from < sources; ++from) {
      if (!sends(call, from, rank_) || (call.what == Collective::scatter && call.inputs.empty())) {
        continue;
      }
      for (size_t part = 0; part < call.parts(); ++part) fill(call, from, part);
    }
  }

  /// This rank's input once per rank, in few large copies: worlds may have a million ranks.
  bool repeat(const Call& call) const {
    const at::Tensor& in = call.inputs[0];
    const at::Tensor& out = call.outputs[0];
    if (!in.device().is_cpu() || !in.is_contiguous() || !out.is_contiguous()) return false;
    const auto total = static_cast<size_t>(out.nbytes());
    auto* bytes = static_cast<char*>(out.mutable_data_ptr());
    size_t filled = std::min<size_t>(in.nbytes(), total);
    std::memcpy(bytes, in.const_data_ptr(), filled);
    while (filled > 0 && filled < total) {
      const size_t more = std::min(filled, total - filled);
      std::memcpy(bytes + filled, bytes, more);
      filled += more;
    }
    return true;
  }

  void fill(const Call& call, int from, size_t part) const {
    const Piece place = taken(call, from, size_, part);
    // Uneven all_to_all: the piece for this rank itself may not fit; the piece for that rank
    // usually does.
    for (const int to : {rank_, from}) {
      const Piece mine = given(call, to, size_, part);
      if (mine.count == place.count) return copy_piece(place, mine);
    }
  }

  uint64_t posted_ = 0;
};

class FakeWorld final : public RankWorld {
 public:
  FakeWorld(int rank, int size, std::string name)
      : RankWorld(Kind::fake, rank, size, std::move(name), kDefaultTimeout) {}

 private:
  Backends make_backends(std::span<const int> ranks, int index,
                         const std::string& /*group_name*/) override {
    auto backend = c10::make_intrusive<FakeBackend>(index, static_cast<int>(ranks.size()));
    Backends backends;
    for (const auto device : all_device_types()) backends.emplace_back(device, backend);
    return backends;
  }
};

}  // namespace

std::shared_ptr<RankWorld> fake_world(int rank, int size) {
  static std::atomic<int> count{0};
  return std::make_shared<FakeWorld>(rank, size, join_text("tessera.f", count++, ".r", rank));
}

}  // namespace tessera::comm
