// Messages over sockets: two ranks of a pair of sockets in one process.
#include "tessera/transport/socket_transport.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <pthread.h>
#include <sys/socket.h>

#include <array>
#include <atomic>
#include <csignal>
#include <cstdlib>
#include <future>
#include <iostream>
#include <optional>
#include <random>
#include <thread>

#include "tests/support/processes.h"

namespace tessera::comm {
namespace socket_transport_test {

using std::chrono::milliseconds;
using testing::error_of;
using WorkPtr = c10::intrusive_ptr<c10d::Work>;

constexpr milliseconds kPatience(20000);
constexpr int64_t kLarge = 3 << 20;  // more than the kernel keeps of a socket

class SocketLinksTest : public ::testing::Test {
 protected:
  SocketLinksTest() {
    int fds[2];
    EXPECT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, fds), 0);
    for (int rank = 0; rank < 2; ++rank) {
      std::vector<Socket> sockets(2);
      sockets[size_t(1 - rank)] = Socket(fds[rank]);
      ranks_[rank] = std::make_shared<SocketTransport>(std::move(sockets));
    }
  }

  WorkPtr send(int from, const at::Tensor& piece, int tag) {
    return ranks_[from]->send_piece(piece, 1 - from, tag);
  }
  WorkPtr receive(int at, const at::Tensor& piece, int tag) {
    return ranks_[at]->receive_piece(piece, 1 - at, tag);
  }

  std::shared_ptr<SocketTransport> ranks_[2];
};

at::Tensor values(int64_t n, int seed) { return at::arange(n, at::kFloat).add_(seed); }

TEST_F(SocketLinksTest, AMessageArrivesInTheTensorThatIsPosted) {
  const at::Tensor room = at::zeros({5});
  const auto sent = send(0, values(5, 3), 7);
  const auto came = receive(1, room, 7);
  EXPECT_TRUE(sent->wait(kPatience));
  EXPECT_TRUE(came->wait(kPatience));
  EXPECT_TRUE(at::equal(room, values(5, 3)));
}

TEST_F(SocketLinksTest, MessagesOfOtherTagsAreKeptUntilTheyArePosted) {
  std::vector<WorkPtr> sent;
  for (int tag = 0; tag < 5; ++tag) sent.push_back(send(0, values(100 + tag, tag), tag));
  for (const auto& work : sent) EXPECT_TRUE(work->wait(kPatience));
  for (int tag = 4; tag >= 0; --tag) {
    const at::Tensor room = at::zeros({100 + tag});
    EXPECT_TRUE(receive(1, room, tag)->wait(kPatience));
    EXPECT_TRUE(at::equal(room, values(100 + tag, tag)));
  }
}

TEST_F(SocketLinksTest, MessagesOfOneTagArriveInTheirOrder) {
  std::vector<WorkPtr> sent;
  for (int i = 0; i < 40; ++i) sent.push_back(send(0, values(3, i), 1));  // more than a call takes
  const auto other = send(0, values(3, -1), 2);
  EXPECT_TRUE(other->wait(kPatience));
  const at::Tensor last = at::zeros({3});
  EXPECT_TRUE(receive(1, last, 2)->wait(kPatience));  // the others are read on the way, and kept
  for (int i = 0; i < 40; ++i) {
    const at::Tensor room = at::zeros({3});
    EXPECT_TRUE(receive(1, room, 1)->wait(kPatience));
    EXPECT_TRUE(at::equal(room, values(3, i)));
  }
}

TEST_F(SocketLinksTest, LargeMessagesPassEachOther) {
  const auto exchange = [&](int rank) {
    const at::Tensor room = at::zeros({kLarge});
    const auto sent = send(rank, values(kLarge, rank), 1);
    const auto came = receive(rank, room, 1);
    EXPECT_TRUE(sent->wait(kPatience));  // needs the other to read, which first sends too
    EXPECT_TRUE(came->wait(kPatience));
    EXPECT_TRUE(at::equal(room, values(kLarge, 1 - rank)));
  };
  std::thread other([&] { exchange(1); });
  exchange(0);
  other.join();
}

/// Also one that comes while the waiting thread is busy with a message of another.
TEST_F(SocketLinksTest, AnInterruptEndsAWaitWheneverItComes) {
  constexpr int kTimes = 1000;
  const at::Tensor room = at::zeros({1});
  const auto never = receive(1, room, /*tag=*/1);
  std::mt19937 random(5);
  for (int i = 0; i < kTimes; ++i) {
    auto waiter = std::async(std::launch::async, [&] { return never->wait(kPatience); });
    const auto other = send(0, room, /*tag=*/2);
    EXPECT_TRUE(other->wait(kPatience));
    const auto until = std::chrono::steady_clock::now() + std::chrono::microseconds(random() % 60);
    while (std::chrono::steady_clock::now() < until) continue;
    never->abort();
    ASSERT_EQ(waiter.wait_for(kPatience / 4), std::future_status::ready) << "time " << i;
    EXPECT_FALSE(waiter.get());
  }
}

/// Signals come all the time, as with profilers; sending, receiving and waiting go on.
TEST_F(SocketLinksTest, SignalsInterruptNoMessage) {
  struct sigaction ignore_it {};
  ignore_it.sa_handler = [](int) {};
  struct sigaction before {};
  sigaction(SIGUSR1, &ignore_it, &before);  // without SA_RESTART
  std::atomic<bool> done{false};
  const auto exchange = [&](int rank) {
    for (int i = 0; i < 20; ++i) {
      const at::Tensor room = at::zeros({kLarge / 8});
      const auto sent = send(rank, values(kLarge / 8, i + rank), i);
      EXPECT_TRUE(receive(rank, room, i)->wait(kPatience));
      EXPECT_TRUE(sent->wait(kPatience));
      EXPECT_TRUE(at::equal(room, values(kLarge / 8, i + 1 - rank)));
    }
  };
  std::thread signals([&, target = pthread_self()] {
    while (!done) {
      pthread_kill(target, SIGUSR1);
      std::this_thread::sleep_for(std::chrono::microseconds(50));
    }
  });
  std::thread other([&] { exchange(1); });
  exchange(0);
  done = true;
  signals.join();
  other.join();
  sigaction(SIGUSR1, &before, nullptr);
}

TEST_F(SocketLinksTest, AReceiveThatIsPostedWhileItsMessageComesGetsIt) {
  const auto sent = send(0, values(kLarge, 5), 1);
  std::thread sender([&] { EXPECT_TRUE(sent->wait(kPatience)); });
  // The thread that waits for tag 2 reads the message of tag 1 meanwhile, as long as it takes.
  const at::Tensor small = at::zeros({1});
  const auto never = receive(1, small, 2);
  std::thread reader([&] { EXPECT_FALSE(never->wait(kPatience)); });
  const at::Tensor room = at::zeros({kLarge});
  EXPECT_TRUE(receive(1, room, 1)->wait(kPatience));
  EXPECT_TRUE(at::equal(room, values(kLarge, 5)));
  never->abort();
  reader.join();
  sender.join();
  const auto last = send(0, values(1, 9), 2);  // an interrupted wait may be taken up again
  EXPECT_TRUE(last->wait(kPatience));
  EXPECT_TRUE(never->wait(kPatience));
  EXPECT_EQ(small.item<float>(), 9);
}

TEST_F(SocketLinksTest, ManyThreadsWaitForManyMessages) {
  const char* given = std::getenv("TESSERA_SEED");
  const unsigned seed = given != nullptr ? unsigned(std::atoi(given)) : std::random_device()();
  std::cout << "TESSERA_SEED=" << seed << '\n';
  constexpr int kThreads = 4;
  const auto rank = [&](int me) {
    std::vector<std::thread> threads;
    for (int thread = 0; thread < kThreads; ++thread) {
      threads.emplace_back([&, me, thread] {
        std::mt19937 own(seed + unsigned(thread));  // alike on both ranks
        for (int i = 0; i < 60; ++i) {
          const auto size = int64_t(1 + own() % (own() % 8 == 0 ? 200'000 : 500));
          const at::Tensor room = at::zeros({size});
          const auto came = receive(me, room, thread);
          const auto sent = send(me, values(size, me + i), thread);
          EXPECT_TRUE(came->wait(kPatience));
          EXPECT_TRUE(sent->wait(kPatience));
          EXPECT_TRUE(at::equal(room, values(size, 1 - me + i)));
        }
      });
    }
    for (auto& thread : threads) thread.join();
  };
  std::thread other([&] { rank(1); });
  rank(0);
  other.join();
}

TEST_F(SocketLinksTest, AMessageOfAnotherSizeIsAnError) {
  const auto sent = send(0, values(3, 0), 1);
  const auto came = receive(1, at::zeros({4}), 1);
  EXPECT_TRUE(sent->wait(kPatience));
  EXPECT_EQ(error_of([&] { came->wait(kPatience); }),
            "other: the peer sends 12 bytes where 16 are expected");
}

/// The one that asks for it finds out, while another thread moves bytes of the same link.
TEST_F(SocketLinksTest, AMessageOfAnotherSizeMayBeFoundWhileOthersMove) {
  EXPECT_TRUE(send(0, values(3, 0), 1)->wait(kPatience));
  EXPECT_TRUE(send(0, values(1, 0), 2)->wait(kPatience));
  EXPECT_TRUE(receive(1, at::zeros({1}), 2)->wait(kPatience));  // that of tag 1 is kept
  const auto sent = send(1, values(8 * kLarge, 0), 3);
  const auto came = receive(0, at::zeros({8 * kLarge}), 3);
  std::thread moves([&] { EXPECT_ANY_THROW(sent->wait(kPatience)); });
  std::thread reads([&] { EXPECT_ANY_THROW(came->wait(kPatience)); });
  std::this_thread::sleep_for(milliseconds(5));
  EXPECT_ANY_THROW(receive(1, at::zeros({4}), 1)->wait(kPatience));
  moves.join();
  ranks_[1]->close();
  reads.join();
}

TEST_F(SocketLinksTest, WhatWaitsForAPeerThatIsGoneThrows) {
  const auto came = receive(1, at::zeros({4}), 1);
  std::thread waits([&] { EXPECT_ANY_THROW(came->wait(kPatience)); });
  ranks_[0].reset();  // its sockets close
  waits.join();
  EXPECT_ANY_THROW(receive(1, at::zeros({4}), 2)->wait(kPatience));
  EXPECT_ANY_THROW(send(1, at::zeros({4}), 2)->wait(kPatience));
}

/// What comes for other tags, without end, is no reason to wait on.
TEST_F(SocketLinksTest, ALimitHoldsWhileBytesOfOthersFlow) {
  std::atomic<bool> done{false};
  std::thread sender([&] {
    while (!done) send(0, values(1000, 0), 2)->wait(kPatience);
  });
  const auto came = receive(1, at::zeros({4}), 1);
  const auto begin = std::chrono::steady_clock::now();
  EXPECT_EQ(error_of([&] { came->wait(milliseconds(200)); }), "other: no answer within 200 ms");
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(5));
  std::thread interrupts([&] {
    std::this_thread::sleep_for(milliseconds(50));
    came->abort();
  });
  EXPECT_FALSE(came->wait(kPatience));
  interrupts.join();
  done = true;
  std::thread drains([&] { EXPECT_ANY_THROW(came->wait(kPatience)); });
  sender.join();
  ranks_[0]->close();
  drains.join();
}

TEST_F(SocketLinksTest, ARankThatEndsItsSendingStillReceives) {
  const auto sent = send(0, values(3, 1), 1);
  EXPECT_TRUE(sent->wait(kPatience));
  ranks_[0]->end_sending();
  const at::Tensor room = at::zeros({3});
  EXPECT_TRUE(receive(1, room, 1)->wait(kPatience));  // it was sent before
  EXPECT_TRUE(at::equal(room, values(3, 1)));
  const auto back = send(1, values(3, 2), 2);
  EXPECT_TRUE(back->wait(kPatience));
  EXPECT_EQ(error_of([&] { receive(1, room, 3)->wait(kPatience); }),
            "other: the link broke: closed by the peer");
  EXPECT_TRUE(receive(0, room, 2)->wait(kPatience));
  EXPECT_TRUE(at::equal(room, values(3, 2)));
}

TEST(SocketLinksPeer, AnImpossibleSizeIsAnErrorBeforeMemoryIsTakenForIt) {
  int fds[2];
  ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, fds), 0);
  std::vector<Socket> sockets(2);
  sockets[1] = Socket(fds[0]);
  const Socket other(fds[1]);
  const auto links = std::make_shared<SocketTransport>(std::move(sockets));
  const std::array<uint64_t, 2> header = {uint64_t{1} << 62, 7};
  ASSERT_EQ(::send(other.fd(), header.data(), sizeof(header), 0), ssize_t(sizeof(header)));
  EXPECT_NE(error_of([&] {
              links->receive_piece(at::zeros({1}), 1, 1)->wait(kPatience);
            }).find("announces a message of 4611686018427387904 bytes"),
            std::string::npos);
}

/// Three ranks: rank 1 lives but never sends its part, rank 2 is gone. Rank 0 waits for rank 1.
TEST(SocketLinksExchange, EndsWhenAnyOfItsLinksBreaks) {
  for (const bool breaks_before : {true, false}) {
    int to_first[2];
    int to_second[2];
    ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, to_first), 0);
    ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, to_second), 0);
    const Socket first(to_first[1]);
    std::optional<Socket> second(to_second[1]);
    std::vector<Socket> sockets(3);
    sockets[1] = Socket(to_first[0]);
    sockets[2] = Socket(to_second[0]);
    const auto links = std::make_shared<SocketTransport>(std::move(sockets));
    if (breaks_before) {
      second.reset();
      EXPECT_ANY_THROW(links->receive_piece(at::zeros({1}), 2, 9)->wait(kPatience));
    }
    Exchange exchange(links, {.rank = 0, .size = 3, .tag = 1}, kPatience);
    const auto awaited = exchange.receive(at::zeros({2}), 1);
    exchange.receive(at::zeros({2}), 2);
    auto waiter = std::async(std::launch::async, [&] { exchange.await(awaited); });
    if (!breaks_before) second.reset();
    EXPECT_EQ(error_of([&] { waiter.get(); }), "other: the link broke: closed by the peer");
  }
}

/// It looks around meanwhile, so that its last wait is shorter than that.
TEST_F(SocketLinksTest, AnExchangeThatTimesOutSaysHowLongItWaited) {
  Exchange exchange(ranks_[0], {.rank = 0, .size = 2, .tag = 1}, milliseconds(300));
  int looks = 0;
  exchange.when_late(milliseconds(60), [&] { ++looks; });
  const auto awaited = exchange.receive(at::zeros({2}), 1);
  EXPECT_EQ(error_of([&] { exchange.await(awaited); }), "other: no answer within 300 ms");
  EXPECT_GT(looks, 0);
}

TEST_F(SocketLinksTest, ClosingWakesWhoWaitsOnBothSides) {
  const auto here = receive(0, at::zeros({4}), 1);
  const auto there = receive(1, at::zeros({4}), 1);
  std::thread first([&] { EXPECT_ANY_THROW(here->wait(kPatience)); });
  std::thread second([&] { EXPECT_ANY_THROW(there->wait(kPatience)); });
  ranks_[0]->close();
  first.join();
  second.join();
}

TEST_F(SocketLinksTest, AWaitEndsAtItsLimit) {
  const auto came = receive(1, at::zeros({4}), 1);
  EXPECT_EQ(error_of([&] { came->wait(milliseconds(10)); }), "other: no answer within 10 ms");
}

}  // namespace socket_transport_test
}  // namespace tessera::comm
