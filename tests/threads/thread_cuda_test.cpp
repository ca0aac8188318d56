// Thread ranks that share one GPU: order between their streams, memory, generators. Skipped where
// there is none.
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include "tessera/base/errors.h"
#include "tessera/comm/rank_generator.h"
#include "tessera/comm/threads.h"
#include "tests/comm/rank_data.h"
#include "tests/support_pure/expect_error.h"

namespace tessera {
namespace thread_cuda_test {

using c10d::ReduceOp;
using comm::run_ranks;
using test::data_of;
using test::everyone;
using test::Tensors;

constexpr int kRanks = 4;

class ThreadCuda : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!at::hasCUDA()) GTEST_SKIP() << "no GPU here";
  }
};

c10::Device gpu() { return c10::Device(c10::kCUDA, 0); }

/// A stream of the calling thread's own: ranks then run at the same time on the device.
c10::Stream own_stream() {
  return c10::impl::VirtualGuardImpl(c10::kCUDA).getStreamFromGlobalPool(gpu());
}

/// A full tensor whose value is right only after the device has worked for some milliseconds;
/// before, it is -7. No step of it makes the host wait.
at::Tensor late(int64_t count, double value, at::ScalarType dtype = at::kFloat) {
  const auto options = at::TensorOptions().device(gpu());
  at::Tensor result = at::full({count}, -7, options.dtype(dtype));
  at::Tensor busy = at::ones({2048, 2048}, options);
  for (int i = 0; i < 40; ++i) busy = at::mm(busy, busy) / 2048;  // stays 1
  result.copy_(busy.flatten()[0] * value);
  return result;
}

bool close(const at::Tensor& a, const at::Tensor& b) {
  return a.sizes() == b.sizes() && at::allclose(a.cpu().to(at::kDouble), b.cpu().to(at::kDouble));
}

TEST_F(ThreadCuda, CollectivesWaitForTheWorkOfEveryRanksStream) {
  run_ranks(kRanks, [](int rank) {
    c10::StreamGuard on(own_stream());
    auto& backend = everyone(kRanks)->backend(at::kCUDA);
    for (int round = 0; round < 10; ++round) {
      Tensors t = {late(1000, rank + round)};
      backend.allreduce(t)->wait();
      at::Tensor all = at::empty({kRanks * 1000}, t[0].options());
      backend._allgather_base(all, t[0])->wait();
      t[0].zero_();  // after the wait: must not be seen by the others
      const at::Tensor want = at::full({kRanks * 1000}, 6 + kRanks * round, at::kFloat);
      EXPECT_TRUE(close(all, want));
    }
  });
}

TEST_F(ThreadCuda, TensorsMayBeLetGoBeforeTheWait) {
  run_ranks(kRanks, [](int rank) {
    c10::StreamGuard on(own_stream());
    auto& backend = everyone(kRanks)->backend(at::kCUDA);
    for (int round = 0; round < 20; ++round) {
      at::Tensor all = at::empty({kRanks, 50'000}, at::TensorOptions().device(gpu()));
      c10::intrusive_ptr<c10d::Work> work;
      {
        at::Tensor mine = late(50'000, rank + round);
        work = backend._allgather_base(all, mine);
      }
      const at::Tensor reuse = at::full({50'000}, -1.0, all.options());  // maybe the same memory
      work->wait();
      for (int r = 0; r < kRanks; ++r) {
        EXPECT_TRUE(close(all[r], at::full({50'000}, r + round, at::kFloat))) << round;
      }
    }
  });
}

TEST_F(ThreadCuda, ResultsEqualThoseOfTheCpu) {
  run_ranks(kRanks, [](int rank) {
    auto group = everyone(kRanks);
    for (const auto dtype : {at::kFloat, at::kDouble, at::kHalf, at::kBFloat16, at::kInt, at::kLong,
                             at::kByte, at::kBool}) {
      for (const auto op : {ReduceOp::SUM, ReduceOp::AVG, ReduceOp::PRODUCT, ReduceOp::MIN,
                            ReduceOp::MAX, ReduceOp::BAND, ReduceOp::BOR, ReduceOp::BXOR}) {
        const bool bitwise = op == ReduceOp::BAND || op == ReduceOp::BOR || op == ReduceOp::BXOR;
        if (bitwise && !at::isIntegralType(dtype, true)) continue;
        if (op == ReduceOp::AVG && dtype == at::kBool) continue;
        Tensors cpu = {data_of(rank, {3, 5}, dtype)};
        Tensors cuda = {cpu[0].to(gpu())};
        group->backend(at::kCPU).allreduce(cpu, {.reduceOp = op})->wait();
        group->backend(at::kCUDA).allreduce(cuda, {.reduceOp = op})->wait();
        EXPECT_TRUE(close(cuda[0], cpu[0])) << dtype << " " << int(op);
        at::Tensor whole = data_of(rank, {kRanks, 5}, dtype);
        at::Tensor whole_cuda = whole.to(gpu());
        at::Tensor chunk = at::empty({5}, dtype);
        at::Tensor chunk_cuda = chunk.to(gpu());
        group->backend(at::kCPU)._reduce_scatter_base(chunk, whole, {.reduceOp = op})->wait();
        group->backend(at::kCUDA)
            ._reduce_scatter_base(chunk_cuda, whole_cuda, {.reduceOp = op})
            ->wait();
        EXPECT_TRUE(close(chunk_cuda, chunk)) << dtype << " " << int(op);
      }
    }
  });
}

TEST_F(ThreadCuda, ExchangesMessagesAndBroadcasts) {
  run_ranks(kRanks, [](int rank) {
    c10::StreamGuard on(own_stream());
    auto& backend = everyone(kRanks)->backend(at::kCUDA);
    at::Tensor rows = late(10, rank, at::kLong);  // r + 1 rows to rank r
    at::Tensor got = at::empty({kRanks * (rank + 1)}, rows.options());
    std::vector<int64_t> input_splits = {1, 2, 3, 4};
    std::vector<int64_t> output_splits(kRanks, rank + 1);
    backend.alltoall_base(got, rows, output_splits, input_splits)->wait();
    EXPECT_TRUE(close(got, at::repeat_interleave(at::arange(kRanks), rank + 1)));
    Tensors mine = {late(3, rank, at::kLong)};
    Tensors theirs = {at::empty({3}, mine[0].options())};
    auto sent = backend.send(mine, (rank + 1) % kRanks, 0);
    backend.recv(theirs, (rank + kRanks - 1) % kRanks, 0)->wait();
    sent->wait();
    EXPECT_TRUE(close(theirs[0], at::full({3}, (rank + kRanks - 1) % kRanks, at::kLong)));
    backend.broadcast(mine, {.rootRank = 2})->wait();
    EXPECT_TRUE(close(mine[0], at::full({3}, 2, at::kLong)));
  });
}

TEST_F(ThreadCuda, FuturesOrderTheStreamThatWaits) {
  run_ranks(2, [](int rank) {
    c10::StreamGuard on(own_stream());
    auto& backend = everyone(2)->backend(at::kCUDA);
    Tensors t = {late(100, rank + 1.0)};
    auto future = backend.allreduce(t)->getFuture();
    future->waitAndThrow();
    EXPECT_TRUE(close(future->value().toTensorVector()[0], at::full({100}, 3.0)));
  });
}

TEST_F(ThreadCuda, EachRankDrawsFromItsOwnGenerator) {
  at::manual_seed(11);
  const auto options = at::TensorOptions().device(gpu());
  const Tensors want = {at::randn({5}, options), at::rand({5}, options)};
  at::manual_seed(11);
  run_ranks(kRanks, [&](int) {
    for (const auto& expected : want) {
      const at::Tensor got =
          &expected == &want[0] ? at::randn({5}, options) : at::rand({5}, options);
      EXPECT_TRUE(at::equal(got, expected));
    }
  });
}

TEST_F(ThreadCuda, ARankOnTheCpuAmongRanksOnTheGpuIsAnError) {
  run_ranks(2, [](int rank) {
    Tensors t = {rank == 0 ? at::ones({2}) : at::ones({2}).to(gpu())};
    test::expect_error<PeerError>(
        [&] { everyone(2)->backend(t[0].device().type()).allreduce(t)->wait(); },
        {"on cpu", "on cuda:0"});
  });
}

}  // namespace thread_cuda_test
}  // namespace tessera
