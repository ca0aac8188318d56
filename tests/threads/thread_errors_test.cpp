// A thread rank that fails, ends or never comes, and ranks that wait for each other, end in an
// exception on every rank, at once, that says who, where and what.
#include <chrono>
#include <latch>
#include <thread>

#include "tessera/base/errors.h"
#include "tessera/comm/threads.h"
#include "tests/comm/rank_data.h"
#include "tests/support_pure/expect_error.h"

namespace tessera {
namespace thread_errors_test {

using comm::run_ranks;
using test::everyone;
using test::expect_error;
using test::Tensors;

TEST(ThreadErrors, ARankThatEndsEarlyIsNamed) {
  expect_error<PeerError>(
      [] {
        run_ranks(3, [](int rank) {
          auto& backend = everyone(3)->backend(at::kCPU);
          if (rank == 1) return;
          Tensors t = {at::ones({1})};
          backend.allreduce(t)->wait();
        });
      },
      {"all_reduce #0 on group [0-2]", "rank 1 has ended"});
}

TEST(ThreadErrors, ARankThatEndsWithoutItsMessageIsNamed) {
  for (const bool receive : {true, false}) {
    expect_error<PeerError>(
        [&] {
          run_ranks(2, [&](int rank) {
            auto& backend = everyone(2)->backend(at::kCPU);
            if (rank == 1) return;
            Tensors t = {at::ones({1})};
            (receive ? backend.recv(t, 1, 3) : backend.send(t, 1, 3))->wait();
          });
        },
        {"rank 1 with tag 3", "rank 1 has ended"});
  }
  expect_error<PeerError>(
      [] {
        run_ranks(3, [](int rank) {
          auto& backend = everyone(3)->backend(at::kCPU);
          Tensors t = {at::ones({1})};
          if (rank == 2) backend.recvAnysource(t, 0)->wait();
        });
      },
      {"recv_any_source", "all other ranks have ended"});
}

TEST(ThreadErrors, TheFirstExceptionWakesAllAndKeepsItsKind) {
  std::atomic<int> woken{0};
  const auto throwing = [&](const auto& error) {
    return [&woken, error] {
      run_ranks(4, [&](int rank) {
        auto& backend = everyone(4)->backend(at::kCPU);
        if (rank == 2) throw error;
        try {
          backend.barrier()->wait();
        } catch (const PeerError& e) {
          EXPECT_NE(std::string(e.what()).find("rank 2 failed: oops"), std::string::npos)
              << e.what();
          ++woken;
          throw;
        }
      });
    };
  };
  expect_error<InvalidArgument>(throwing(InvalidArgument("oops")), {"rank 2: oops"});
  expect_error<NotSupported>(throwing(NotSupported("oops")), {"rank 2: oops"});
  expect_error<PeerError>(throwing(PeerError("oops")), {"rank 2: oops"});
  expect_error<InternalError>(throwing(InternalError("oops")), {"rank 2: oops"});
  expect_error<Error>(throwing(std::runtime_error("oops")), {"rank 2: oops"});
  EXPECT_EQ(woken, 5 * 3);
}

TEST(ThreadErrors, TheOriginalExceptionIsNested) {
  try {
    run_ranks(2, [](int rank) {
      if (rank == 1) throw std::out_of_range("far away");
    });
    FAIL() << "did not throw";
  } catch (const Error& e) {
    EXPECT_STREQ(e.what(), "rank 1: far away");
    EXPECT_THROW(std::rethrow_if_nested(e), std::out_of_range);
  }
}

TEST(ThreadErrors, ErrorsOfTorchLoseTheirBacktraceNotTheirMessage) {
  expect_error<Error>([] { run_ranks(2, [](int) { at::ones({2}) + at::ones({3}); }); },
                      {"must match the size"});
}

TEST(ThreadErrors, NobodyCanPostAfterAFailure) {
  expect_error<InvalidArgument>(
      [] {
        std::latch failed(1);
        run_ranks(2, [&](int rank) {
          if (rank == 0) {
            struct CountDown {
              std::latch& latch;
              ~CountDown() { latch.count_down(); }
            };
            auto failing = std::make_unique<CountDown>(failed);
            throw InvalidArgument("mine");
          }
          failed.wait();
          auto& backend = everyone(2)->backend(at::kCPU);
          std::this_thread::sleep_for(std::chrono::milliseconds(50));
          expect_error<PeerError>([&] { backend.barrier()->wait(); }, {"barrier", "rank 0 failed"});
        });
      },
      {"rank 0: mine"});
}

TEST(ThreadErrors, ADeadlockIsFoundAtOnceAndListed) {
  expect_error<PeerError>(
      [] {
        run_ranks(3, [](int rank) {
          auto world = comm::current_world();
          auto all = everyone(3);
          Tensors t = {at::ones({1})};
          if (rank == 0) {
            const int pair[] = {0, 1};
            world->group(pair)->backend(at::kCPU).barrier()->wait();
          } else if (rank == 1) {
            all->backend(at::kCPU).recv(t, 2, 5)->wait();
          } else {
            all->backend(at::kCPU).allreduce(t)->wait();
          }
        });
      },
      {"deadlock", "rank 0 waits in barrier #0 on group [0,1]", "for rank 1",
       "rank 1 waits in recv from rank 2 with tag 5 on group [0-2]",
       "rank 2 waits in all_reduce #0 on group [0-2]", "for rank 0,1"});
}

TEST(ThreadErrors, TwoRanksThatBothSendFirstAreADeadlock) {
  expect_error<PeerError>(
      [] {
        run_ranks(2, [](int rank) {
          auto& backend = everyone(2)->backend(at::kCPU);
          Tensors t = {at::ones({1})};
          backend.send(t, 1 - rank, 0)->wait();
          backend.recv(t, 1 - rank, 0)->wait();
        });
      },
      {"deadlock", "rank 0 waits in send to rank 1", "rank 1 waits in send to rank 0"});
}

TEST(ThreadErrors, ADeadlockIsFoundWhenTheLastFreeRankEnds) {
  expect_error<PeerError>(
      [] {
        run_ranks(3, [](int rank) {
          auto world = comm::current_world();
          if (rank == 2) {
            std::this_thread::sleep_for(std::chrono::milliseconds(30));
            return;
          }
          const int forward[] = {0, 1};
          const int backward[] = {1, 0};
          world->group(rank == 0 ? forward : backward)->backend(at::kCPU).barrier()->wait();
        });
      },
      {"deadlock", "group [0,1]", "group [1,0]"});
}

TEST(ThreadErrors, ARankThatNeverComesIsNamedAfterTheTimeout) {
  std::latch done(1);
  expect_error<PeerError>(
      [&] {
        run_ranks(2,
                  [&](int rank) {
                    auto& backend = everyone(2)->backend(at::kCPU);
                    if (rank == 1) {
                      done.wait();
                      return;
                    }
                    try {
                      backend.barrier()->wait();
                    } catch (...) {
                      done.count_down();
                      throw;
                    }
                  },
                  {.timeout = std::chrono::milliseconds(60)});
      },
      {"barrier #0", "rank 0 waited 60 ms for rank 1"});
}

TEST(ThreadErrors, AWaitWithALimitMayBeRepeated) {
  run_ranks(2, [](int rank) {
    auto& backend = everyone(2)->backend(at::kCPU);
    if (rank == 1) std::this_thread::sleep_for(std::chrono::milliseconds(60));
    auto work = backend.barrier();
    if (rank == 0) {
      expect_error<PeerError>([&] { work->wait(std::chrono::milliseconds(5)); },
                              {"waited 5 ms for rank 1"});
      EXPECT_FALSE(work->isCompleted());
    }
    EXPECT_TRUE(work->wait());
  });
}

TEST(ThreadErrors, AMonitoredBarrierNamesWhoIsMissing) {
  std::latch done(1);
  run_ranks(3, [&](int rank) {
    auto& backend = everyone(3)->backend(at::kCPU);
    if (rank == 2) {
      done.wait();
      return;
    }
    c10d::BarrierOptions options;
    options.timeout = std::chrono::milliseconds(50);
    expect_error<PeerError>([&] { backend.monitoredBarrier(options, true); }, {"for rank 2"});
    if (rank == 0) done.count_down();
  });
}

TEST(ThreadErrors, AnAbortEndsWhatIsOpen) {
  run_ranks(2, [](int rank) {
    auto& backend = everyone(2)->backend(at::kCPU);
    if (rank == 0) {
      auto work = backend.barrier();
      auto future = work->getFuture();
      backend.abort();
      expect_error<PeerError>([&] { work->wait(); }, {"aborted by rank 0"});
      EXPECT_TRUE(future->hasError());
    } else {
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
      expect_error<PeerError>([&] { backend.barrier()->wait(); }, {"aborted by rank 0"});
    }
  });
}

TEST(ThreadErrors, AFutureOfAFailedCallHasTheError) {
  run_ranks(2, [](int rank) {
    auto& backend = everyone(2)->backend(at::kCPU);
    Tensors t = {at::ones({rank + 1})};
    c10::intrusive_ptr<c10::ivalue::Future> future;
    try {
      future = backend.allreduce(t)->getFuture();
    } catch (const PeerError&) {
      return;  // the rank that comes second hears of it at once
    }
    future->wait();
    EXPECT_TRUE(future->hasError());
  });
}

TEST(ThreadErrors, AReceiveThatWasGivenUpTakesNothing) {
  for (const bool aborts : {true, false}) {
    std::latch given_up(1);
    run_ranks(2, [&](int rank) {
      auto& backend = everyone(2)->backend(at::kCPU);
      if (rank == 0) {
        given_up.wait();
        Tensors out = {at::ones({2})};
        backend.send(out, 1, 5)->wait();
        return;
      }
      Tensors first = {at::zeros({2})};
      if (!aborts) backend.setTimeout(std::chrono::milliseconds(20));
      auto work = backend.recv(first, 0, 5);
      if (aborts) work->abort();
      expect_error<PeerError>([&] { work->wait(); }, {aborts ? "aborted by rank 1" : "for rank 0"});
      backend.setTimeout(std::chrono::minutes(10));
      given_up.count_down();
      Tensors second = {at::zeros({2})};
      backend.recv(second, 0, 5)->wait();
      EXPECT_EQ(first[0].sum().item<float>(), 0.0F);
      EXPECT_EQ(second[0].sum().item<float>(), 2.0F);
    });
  }
}

TEST(ThreadErrors, ACallbackThatWaitsTakesNobodysSignal) {
  // The callbacks run on the rank that finds the deadlock, between its look and its sleep.
  auto other = comm::ThreadRanks::create(2);
  expect_error<PeerError>(
      [&] {
        run_ranks(2, [&](int rank) {
          auto& backend = everyone(2)->backend(at::kCPU);
          Tensors t = {at::ones({1})};
          auto work = backend.recv(t, 1 - rank, 0);
          work->getFuture()->addCallback([other, rank](c10::ivalue::Future&) {
            const auto group = other->world(rank)->group(test::iota(2));
            Tensors own = {at::ones({1})};
            auto late = group->backend(at::kCPU).recvAnysource(own, rank);
            EXPECT_THROW(late->wait(std::chrono::milliseconds(5)), PeerError);
          });
          work->wait();
        });
      },
      {"deadlock"});
}

TEST(ThreadErrors, NobodyIsSentToNowhere) {
  run_ranks(2, [](int) {
    auto& backend = everyone(2)->backend(at::kCPU);
    Tensors t = {at::ones({1})};
    expect_error<InvalidArgument>([&] { backend.send(t, -1, 0); }, {"send", "-1"});
  });
}

TEST(ThreadErrors, TheLongestTimeoutIsNotOver) {
  using std::chrono::milliseconds;
  run_ranks(2,
            [](int rank) {
              auto& backend = everyone(2)->backend(at::kCPU);
              for (const auto limit : {milliseconds(0), milliseconds::max()}) {
                if (rank == 1) std::this_thread::sleep_for(milliseconds(20));
                EXPECT_TRUE(backend.barrier()->wait(limit));
              }
            },
            {.timeout = milliseconds::max()});
}

TEST(ThreadErrors, NoRanksAreNotAWorld) {
  expect_error<InvalidArgument>([] { run_ranks(0, [](int) {}); }, {"0 ranks"});
}

TEST(ThreadErrors, AGroupOutlivesItsRanksButNotTheirTalk) {
  std::shared_ptr<const comm::Group> group;
  run_ranks(2, [&](int rank) {
    auto mine = everyone(2);
    if (rank == 0) group = mine;
  });
  expect_error<PeerError>([&] { group->backend(at::kCPU).barrier()->wait(); }, {"has ended"});
}

}  // namespace thread_errors_test
}  // namespace tessera
