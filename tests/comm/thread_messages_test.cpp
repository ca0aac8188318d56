// Ranks as threads: send, recv and coalesced calls.
#include <ATen/Functions.h>
#include <gtest/gtest.h>

#include "tessera/comm/threads.h"
#include "tests/comm/rank_data.h"

namespace tessera {
namespace thread_messages_test {

using comm::run_ranks;
using test::everyone;
using test::same;
using test::Tensors;

TEST(ThreadMessages, AreMatchedBySourceAndTagInOrder) {
  run_ranks(3, [](int rank) {
    auto& backend = everyone(3)->backend(at::kCPU);
    const auto message = [](int from, int tag, int number) {
      return at::full({2}, from * 100 + tag * 10 + number, at::kLong);
    };
    if (rank < 2) {
      std::vector<c10::intrusive_ptr<c10d::Work>> works;
      std::vector<Tensors> keep;
      for (int number = 0; number < 3; ++number) {
        for (int tag = 0; tag < 2; ++tag) {
          keep.push_back({message(rank, tag, number)});
          works.push_back(backend.send(keep.back(), 2, tag));
        }
      }
      for (auto& work : works) work->wait();
    } else {
      for (int tag = 1; tag >= 0; --tag) {
        for (int from = 1; from >= 0; --from) {
          for (int number = 0; number < 3; ++number) {
            Tensors got = {at::empty({2}, at::kLong)};
            backend.recv(got, from, tag)->wait();
            EXPECT_TRUE(same(got[0], message(from, tag, number)));
          }
        }
      }
    }
  });
}

TEST(ThreadMessages, AReceiveFromAnyoneSaysWhoItWas) {
  run_ranks(4, [](int rank) {
    auto& backend = everyone(4)->backend(at::kCPU);
    if (rank == 3) {
      int64_t seen = 0;
      for (int i = 0; i < 3; ++i) {
        Tensors got = {at::empty({1}, at::kLong)};
        auto work = backend.recvAnysource(got, 7);
        work->wait();
        EXPECT_EQ(got[0].item<int64_t>(), work->sourceRank());
        seen += 1 << work->sourceRank();
      }
      EXPECT_EQ(seen, 7);
    } else {
      Tensors mine = {at::full({1}, rank, at::kLong)};
      backend.send(mine, 3, 7)->wait();
    }
  });
}

TEST(ThreadMessages, CoalescedCallsAreOneWork) {
  run_ranks(2, [](int rank) {
    auto& backend = everyone(2)->backend(at::kCPU);
    Tensors mine = {at::full({1}, static_cast<float>(rank))};
    Tensors got = {at::empty({1})};
    Tensors sum = {at::ones({1})};
    backend.startCoalescing();
    backend.send(mine, 1 - rank, 0);  // both send first: fine, nothing blocks until wait
    backend.recv(got, 1 - rank, 0);
    backend.allreduce(sum);
    auto work = backend.endCoalescing();
    auto future = work->getFuture();
    EXPECT_TRUE(work->wait());
    EXPECT_EQ(got[0].item<float>(), 1.0F - static_cast<float>(rank));
    EXPECT_EQ(sum[0].item<float>(), 2.0F);
    future->waitAndThrow();
    EXPECT_EQ(future->value().toTensorVector().size(), work->result().size());
  });
}

}  // namespace thread_messages_test
}  // namespace tessera
