// Thread ranks on a device whose events are counted and can fail: order between streams is asked
// for where it must be, and a device that breaks in the middle of a call leaves no rank waiting.
#include <c10/core/impl/DeviceGuardImplInterface.h>

#include <atomic>
#include <latch>
#include <utility>

#include "tessera/base/errors.h"
#include "tessera/comm/threads.h"
#include "tests/comm/rank_data.h"
#include "tests/support_pure/expect_error.h"

namespace tessera {
namespace thread_streams_test {

using comm::run_ranks;
using test::everyone;
using test::expect_error;
using test::Tensors;

constexpr auto kDevice = c10::DeviceType::PrivateUse1;

std::atomic<int> records_left{0};  // until one fails
std::atomic<int> blocks{0};
std::atomic<int> blocks_of_transfers{0};
constexpr c10::StreamId kTransfer = 7;
thread_local c10::Stream current(c10::Stream::DEFAULT, {kDevice, 0});

struct CountedEvents final : c10::impl::NoOpDeviceGuardImpl<kDevice> {
  c10::Device exchangeDevice(c10::Device) const override { return {kDevice, 0}; }
  c10::Device getDevice() const override { return {kDevice, 0}; }
  c10::Stream getStream(c10::Device) const noexcept override { return current; }
  c10::Stream exchangeStream(c10::Stream stream) const noexcept override {
    return std::exchange(current, stream);
  }
  c10::Stream getStreamFromGlobalPool(c10::Device device, bool) const override {
    return c10::Stream(c10::Stream::UNSAFE, device, kTransfer);
  }
  void record(void**, const c10::Stream&, const c10::DeviceIndex,
              const c10::EventFlag) const override {
    if (records_left-- == 0) throw std::runtime_error("the device is lost");
  }
  void block(void*, const c10::Stream& stream) const override {
    ++blocks;
    if (stream.id() == kTransfer) ++blocks_of_transfers;
  }
  bool queryEvent(void*) const override { return true; }
};

C10_REGISTER_GUARD_IMPL(PrivateUse1, CountedEvents)

/// No element, so that no kernel is needed.
at::Tensor empty_there() {
  c10::Storage storage(c10::Storage::use_byte_size_t(), 0,
                       c10::DataPtr(nullptr, c10::Device(kDevice, 0)));
  at::Tensor t = at::detail::make_tensor<c10::TensorImpl>(
      std::move(storage), c10::DispatchKeySet(c10::DispatchKey::PrivateUse1),
      c10::scalarTypeToTypeMeta(at::kFloat));
  t.unsafeGetTensorImpl()->set_sizes_contiguous({0});
  return t;
}

TEST(ThreadStreams, ADeviceThatBreaksAfterTheDataMovedFailsTheCallOnEveryRank) {
  std::atomic<int> reported{0};
  records_left = 2;  // each rank's when it comes; the one at the end fails
  run_ranks(2, [&](int) {
    auto& backend = everyone(2)->backend(kDevice);
    Tensors t = {empty_there()};
    expect_error<Error>([&] { backend.allreduce(t)->wait(); }, {"the device is lost"});
    ++reported;
  });
  EXPECT_EQ(reported, 2);
}

TEST(ThreadStreams, ATransferHasAStreamOfItsOwn) {
  records_left = 1000;
  blocks_of_transfers = 0;
  run_ranks(2, [&](int) {
    const c10::Stream before = current;
    Tensors t = {empty_there()};
    everyone(2)->backend(kDevice).allreduce(t)->wait();
    EXPECT_EQ(current, before);
  });
  EXPECT_EQ(blocks_of_transfers, 2);  // for the tensors of either rank
}

TEST(ThreadStreams, AFutureAskedForLateIsOrderedAfterTheCall) {
  records_left = 1000;
  std::latch both(2);
  run_ranks(2, [&](int rank) {
    auto& backend = everyone(2)->backend(kDevice);
    Tensors t = {empty_there()};
    auto work = backend.allreduce(t);
    both.arrive_and_wait();
    if (rank == 1) return;
    ASSERT_TRUE(work->isCompleted());
    const int before = blocks;
    EXPECT_TRUE(work->getFuture()->completed());
    EXPECT_GT(blocks, before);
  });
}

}  // namespace thread_streams_test
}  // namespace tessera
