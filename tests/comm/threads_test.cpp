// Ranks as threads: what run_ranks promises, groups, async calls. Also runs under the
// thread sanitizer.
#include "tessera/comm/threads.h"

#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/csrc/autograd/variable.h>

#include <atomic>
#include <latch>
#include <thread>

#include "tessera/base/errors.h"
#include "tessera/comm/world_end.h"
#include "tests/comm/rank_data.h"

namespace tessera {
namespace threads_test {

using comm::current_world;
using comm::EnterRank;
using comm::run_ranks;
using comm::ThreadRanks;
using test::data_of;
using test::everyone;
using test::iota;
using test::same;
using test::Tensors;

at::Tensor summed(c10d::Backend& backend, const at::Tensor& t) {
  Tensors mine = {t.clone()};
  backend.allreduce(mine)->wait();
  return mine[0];
}

TEST(Threads, EveryRankRunsOnceInItsOwnWorld) {
  std::vector<std::atomic<int>> runs(8);
  run_ranks(8, [&](int rank) {
    ++runs[static_cast<size_t>(rank)];
    EXPECT_EQ(current_world()->rank(), rank);
    EXPECT_EQ(current_world()->size(), 8);
    EXPECT_EQ(current_world()->kind(), comm::RankWorld::Kind::threads);
  });
  for (auto& count : runs) EXPECT_EQ(count, 1);
}

TEST(Threads, OneRankIsAWorldToo) {
  run_ranks(1, [](int) {
    auto& backend = everyone(1)->backend(at::kCPU);
    EXPECT_TRUE(same(summed(backend, at::ones({3})), at::ones({3})));
    at::Tensor in = at::arange(3);
    at::Tensor out = at::empty({3}, at::kLong);
    backend._allgather_base(out, in)->wait();
    EXPECT_TRUE(same(out, in));
    backend.barrier()->wait();
  });
}

TEST(Threads, SixtyFourRanksWork) {
  run_ranks(64, [](int rank) {
    auto& backend = everyone(64)->backend(at::kCPU);
    for (int round = 0; round < 20; ++round) {
      EXPECT_TRUE(same(summed(backend, at::full({2}, rank + round, at::kLong)),
                       at::full({2}, 63 * 32 + 64 * round, at::kLong)));
    }
    at::Tensor mine = at::full({1}, rank, at::kLong);
    at::Tensor all = at::empty({64}, at::kLong);
    backend._allgather_base(all, mine)->wait();
    EXPECT_TRUE(same(all, at::arange(64)));
  });
}

TEST(Threads, WorksMayBeWaitedForInAnyOrderAndAnyNumberOfTimes) {
  run_ranks(3, [](int rank) {
    auto& backend = everyone(3)->backend(at::kCPU);
    constexpr int kCalls = 20;
    std::vector<Tensors> values;
    std::vector<c10::intrusive_ptr<c10d::Work>> works;
    for (int i = 0; i < kCalls; ++i) {
      values.push_back({at::full({3}, rank * 100 + i, at::kLong)});
      works.push_back(backend.allreduce(values.back()));
    }
    for (int i = kCalls - 1; i >= 0; i -= 2) EXPECT_TRUE(works[static_cast<size_t>(i)]->wait());
    for (int i = 0; i < kCalls; ++i) {
      auto& work = works[static_cast<size_t>((i + rank) % kCalls)];
      EXPECT_TRUE(work->wait());
      EXPECT_TRUE(work->isCompleted());
      EXPECT_TRUE(work->isSuccess());
      EXPECT_EQ(work->exception(), nullptr);
    }
    for (int i = 0; i < kCalls; ++i) {
      EXPECT_TRUE(same(values[static_cast<size_t>(i)][0], at::full({3}, 300 + 3 * i, at::kLong)));
      EXPECT_TRUE(
          same(works[static_cast<size_t>(i)]->result()[0], values[static_cast<size_t>(i)][0]));
    }
  });
}

TEST(Threads, AWorkThatNobodyWaitsForStillTakesPart) {
  run_ranks(2, [](int rank) {
    auto& backend = everyone(2)->backend(at::kCPU);
    Tensors mine = {at::full({1}, rank + 1.0)};
    auto work = backend.allreduce(mine);
    if (rank == 0) return;  // ends with its call posted
    work->wait();
    EXPECT_EQ(mine[0].item<double>(), 3.0);
  });
}

TEST(Threads, FuturesCompleteWithTheirWork) {
  run_ranks(2, [](int rank) {
    auto& backend = everyone(2)->backend(at::kCPU);
    Tensors early = {at::ones({2})};
    auto work = backend.allreduce(early);
    auto future = work->getFuture();
    std::atomic<bool> called{false};
    future->addCallback([&](c10::ivalue::Future& f) { called = !f.hasError(); });
    if (rank == 0) backend.barrier()->wait();
    if (rank == 1) backend.barrier()->wait();
    work->wait();
    future->waitAndThrow();
    EXPECT_TRUE(called);
    EXPECT_TRUE(same(future->value().toTensorVector()[0], at::full({2}, 2.0)));
    EXPECT_TRUE(same(work->getFuture()->value().toTensorVector()[0], at::full({2}, 2.0)));
  });
}

TEST(Threads, SubgroupsAndOverlappingGroupsDoNotDisturbEachOther) {
  run_ranks(6, [](int rank) {
    auto world = current_world();
    auto evens = world->group(iota(3, rank % 2, 2));      // 0,2,4 or 1,3,5
    auto half = world->group(iota(3, rank < 3 ? 0 : 3));  // 0,1,2 or 3,4,5
    auto all = world->group(iota(6));
    auto backwards = world->group(std::vector<int>{5, 4, 3, 2, 1, 0});
    EXPECT_EQ(world->group(iota(6)), all);
    EXPECT_NE(all, backwards);
    for (int round = 0; round < 10; ++round) {
      Tensors a = {at::full({1}, rank, at::kLong)};
      Tensors b = {at::full({1}, rank, at::kLong)};
      Tensors c = {at::full({1}, rank, at::kLong)};
      // Not all ranks issue the groups in the same order: only the order within a group counts.
      auto first = rank % 2 == 0 ? evens->backend(at::kCPU).allreduce(a)
                                 : half->backend(at::kCPU).allreduce(b);
      auto third = all->backend(at::kCPU).allreduce(c);
      auto second = rank % 2 == 0 ? half->backend(at::kCPU).allreduce(b)
                                  : evens->backend(at::kCPU).allreduce(a);
      third->wait();
      second->wait();
      first->wait();
      EXPECT_EQ(a[0].item<int64_t>(), rank % 2 == 0 ? 6 : 9);
      EXPECT_EQ(b[0].item<int64_t>(), rank < 3 ? 3 : 12);
      EXPECT_EQ(c[0].item<int64_t>(), 15);
    }
    at::Tensor mine = at::full({1}, rank, at::kLong);
    at::Tensor gathered = at::empty({6}, at::kLong);
    backwards->backend(at::kCPU)._allgather_base(gathered, mine)->wait();
    EXPECT_TRUE(same(gathered, 5 - at::arange(6)));
  });
}

TEST(Threads, ResultsHaveTheSameBitsOnEveryRankAndInEveryRun) {
  std::vector<at::Tensor> results(8);
  for (int run = 0; run < 5; ++run) {
    run_ranks(4, [&](int rank) {
      auto& backend = everyone(4)->backend(at::kCPU);
      // Sums of these depend on the order of addition.
      at::Tensor mine = at::sin(at::arange(1000) * (rank + 1)) * std::pow(10.0, rank);
      std::this_thread::sleep_for(std::chrono::microseconds(100 * ((rank + run) % 4)));
      const at::Tensor got = summed(backend, mine.to(at::kFloat));
      if (run == 0) results[static_cast<size_t>(rank)] = got;
      EXPECT_TRUE(same(got, results[static_cast<size_t>(rank)]));
    });
    for (size_t rank = 1; rank < 4; ++rank) EXPECT_TRUE(same(results[rank], results[0]));
  }
}

TEST(Threads, StateOfTheCallerIsInheritedAndItsOwnIsUntouched) {
  at::NoGradGuard no_grad;
  const auto& state = c10::AutogradState::get_tls_state();
  const bool multithreading = state.get_multithreading_enabled();
  run_ranks(2, [](int) {
    EXPECT_FALSE(at::GradMode::is_enabled());
    EXPECT_FALSE(c10::AutogradState::get_tls_state().get_multithreading_enabled());
    at::GradMode::set_enabled(true);  // must not leak
  });
  EXPECT_FALSE(at::GradMode::is_enabled());
  EXPECT_EQ(c10::AutogradState::get_tls_state().get_multithreading_enabled(), multithreading);
}

TEST(Threads, AWorldInsideAWorld) {
  run_ranks(2, [](int outer) {
    auto& backend = everyone(2)->backend(at::kCPU);
    auto mine = current_world();
    std::atomic<int64_t> inner_sum{0};
    run_ranks(3, [&](int inner) {
      EXPECT_EQ(current_world()->size(), 3);
      auto& inside = everyone(3)->backend(at::kCPU);
      inner_sum += summed(inside, at::full({1}, inner + outer, at::kLong)).item<int64_t>();
    });
    EXPECT_EQ(inner_sum, 3 * (3 + 3 * outer));
    EXPECT_EQ(current_world(), mine);
    EXPECT_EQ(summed(backend, at::ones({1}, at::kLong)).item<int64_t>(), 2);
  });
}

TEST(Threads, CallersMayBringTheirOwnThreads) {
  auto ranks = ThreadRanks::create(2);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < 2; ++rank) {
    threads.emplace_back([&, rank] {
      EnterRank here(*ranks, rank);
      EXPECT_EQ(current_world(), ranks->world(rank));
      auto& backend = everyone(2)->backend(at::kCPU);
      EXPECT_EQ(summed(backend, at::ones({1})).item<float>(), 2.0F);
    });
  }
  for (auto& thread : threads) thread.join();
  ranks->rethrow_failure();
}

TEST(Threads, AWorldDoesNotEndWhileAThreadIsInIt) {
  static std::atomic<int> ended{0};  // listeners stay
  comm::on_world_end([](const World&) { ++ended; });
  auto ranks = ThreadRanks::create(1);
  auto here = std::make_unique<EnterRank>(*ranks, 0);
  ranks.reset();
  EXPECT_EQ(ended, 0);
  EXPECT_EQ(summed(everyone(1)->backend(at::kCPU), at::ones({1})).item<float>(), 1.0F);
  here.reset();
  EXPECT_EQ(ended, 1);
}

TEST(Threads, ARankMayHaveASecondThread) {
  auto ranks = ThreadRanks::create(2);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < 2; ++rank) {
    threads.emplace_back([&, rank] {
      EnterRank here(*ranks, rank);
      auto group = everyone(2);
      if (rank == 0) {
        // The rank's own thread waits for a message that its second thread makes possible.
        std::latch entered(1);
        std::thread second([&] {
          EnterRank also(*ranks, 0);
          entered.count_down();
          std::this_thread::sleep_for(std::chrono::milliseconds(20));
          Tensors out = {at::ones({1})};
          group->backend(at::kCPU).send(out, 1, 1)->wait();
        });
        entered.wait();
        Tensors in = {at::zeros({1})};
        group->backend(at::kCPU).recv(in, 1, 2)->wait();
        EXPECT_EQ(in[0].item<float>(), 1.0F);
        second.join();
      } else {
        Tensors t = {at::zeros({1})};
        group->backend(at::kCPU).recv(t, 0, 1)->wait();
        group->backend(at::kCPU).send(t, 0, 2)->wait();
      }
    });
  }
  for (auto& thread : threads) thread.join();
  ranks->rethrow_failure();
}

/// y = sum over ranks of x; the gradient is summed over ranks too.
struct SumOverRanks : torch::autograd::Function<SumOverRanks> {
  static at::Tensor forward(torch::autograd::AutogradContext*, const at::Tensor& x) {
    return summed(everyone(4)->backend(at::kCPU), x);
  }
  static torch::autograd::tensor_list backward(torch::autograd::AutogradContext*,
                                               torch::autograd::tensor_list grads) {
    return {summed(everyone(4)->backend(at::kCPU), grads[0])};
  }
};

TEST(Threads, BackwardMayCommunicateOnTheCallingThread) {
  run_ranks(4, [](int rank) {
    const auto me = std::this_thread::get_id();
    at::Tensor x = at::full({3}, rank + 1.0).requires_grad_();
    x.register_hook([me](const at::Tensor&) { EXPECT_EQ(std::this_thread::get_id(), me); });
    at::Tensor y = SumOverRanks::apply(x * 2.0);
    (y * (rank + 1.0)).sum().backward();
    EXPECT_TRUE(same(y.detach(), at::full({3}, 20.0)));
    EXPECT_TRUE(same(x.grad(), at::full({3}, 20.0)));  // 2 * (1 + 2 + 3 + 4)
  });
}

TEST(Threads, CollectivesAreInvisibleToAutograd) {
  run_ranks(2, [](int rank) {
    auto& backend = everyone(2)->backend(at::kCPU);
    for (const int64_t count : {4, 7}) {
      at::Tensor leaf = at::full({count}, rank + 1.0).requires_grad_();
      at::Tensor view = leaf.detach().slice(0, 0, count, 2);  // takes the path through ATen
      Tensors mine = {view};
      backend.allreduce(mine)->wait();
      EXPECT_FALSE(mine[0].requires_grad());
      Tensors direct = {leaf};
      backend.broadcast(direct, {.rootRank = 1})->wait();
      EXPECT_TRUE(leaf.is_leaf());
    }
  });
}

TEST(Threads, AThreadThatKeepsItsStateEntersAndLeavesARankWithIt) {
  const auto ranks = ThreadRanks::create(1, {.inherit_state = false});
  std::unique_ptr<EnterRank> here;
  {
    const at::NoGradGuard no_grad;
    here = std::make_unique<EnterRank>(*ranks, 0);
    EXPECT_FALSE(at::GradMode::is_enabled());
  }
  EXPECT_TRUE(at::GradMode::is_enabled());
  here.reset();  // outside of the scope in which it was made
  EXPECT_TRUE(at::GradMode::is_enabled());
}

TEST(Threads, RanksThatWaitHelpToMoveLargeTensors) {
  run_ranks(4, [](int rank) {
    auto& backend = everyone(4)->backend(at::kCPU);
    for (int round = 0; round < 5; ++round) {
      constexpr int64_t kCount = 300'001;
      EXPECT_TRUE(same(summed(backend, at::full({kCount}, rank + round, at::kInt)),
                       at::full({kCount}, 6 + 4 * round, at::kInt)));
      at::Tensor mine = at::full({kCount}, rank, at::kInt);
      at::Tensor all = at::empty({4, kCount}, at::kInt);
      backend._allgather_base(all, mine)->wait();
      EXPECT_TRUE(same(all, at::arange(4, at::kInt).unsqueeze(1).expand({4, kCount})));
    }
  });
}

TEST(Threads, ManySmallCollectivesKeepTheirOrder) {
  run_ranks(4, [](int rank) {
    auto& backend = everyone(4)->backend(at::kCPU);
    Tensors t = {at::zeros({4}, at::kLong)};
    for (int i = 0; i < 2000; ++i) {
      t[0].fill_(i + rank);
      backend.allreduce(t)->wait();
      ASSERT_EQ(t[0][0].item<int64_t>(), 4 * i + 6);
    }
  });
}

}  // namespace threads_test
}  // namespace tessera
