// Messages over links that are slow, stall, or break in the middle of a message.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <chrono>
#include <memory>
#include <thread>

#include "tessera/transport/socket_transport.h"
#include "tests/support/processes.h"
#include "tests/support/proxy.h"
#include "tests/support_pure/property.h"

namespace tessera::comm {
namespace slow_transport_test {

using std::chrono::milliseconds;
using test::for_each_seed;
using test::Rng;
using testing::error_of;
using testing::Proxy;
using WorkPtr = c10::intrusive_ptr<c10d::Work>;
using Clock = std::chrono::steady_clock;

constexpr milliseconds kPatience(60'000);

/// Two ranks with a proxy between them.
struct Pair {
  Pair(uint64_t seed, Proxy::Options options) : proxy(seed, options) {
    for (int rank = 0; rank < 2; ++rank) {
      std::vector<Socket> sockets(2);
      sockets[static_cast<size_t>(1 - rank)] = Socket(rank == 0 ? proxy.left() : proxy.right());
      ranks[rank] = std::make_shared<SocketTransport>(std::move(sockets));
    }
  }
  Proxy proxy;
  std::shared_ptr<SocketTransport> ranks[2];
};

at::Tensor values(int64_t bytes, int seed) {
  return at::arange(bytes, at::kLong).mul_(seed * 2 + 1).remainder_(251).to(at::kByte);
}

struct Message {
  int64_t bytes = 0;
  int tag = 0;
};

/// Both ranks send and receive the messages, posted in an order of their own.
void exchange(Pair& pair, const std::vector<Message>& messages, const std::vector<size_t>& order,
              int rank) {
  std::vector<WorkPtr> works;
  std::vector<at::Tensor> rooms(messages.size());
  for (size_t i = 0; i < messages.size(); ++i) {
    const auto& [bytes, tag] = messages[i];
    works.push_back(pair.ranks[rank]->send_piece(values(bytes, tag + rank), 1 - rank, tag));
  }
  for (const size_t i : order) {
    rooms[i] = at::zeros({messages[i].bytes}, at::kByte);
    works.push_back(pair.ranks[rank]->receive_piece(rooms[i], 1 - rank, messages[i].tag));
  }
  for (const auto& work : works) EXPECT_TRUE(work->wait(kPatience));
  for (size_t i = 0; i < messages.size(); ++i) {
    EXPECT_TRUE(at::equal(rooms[i], values(messages[i].bytes, messages[i].tag + 1 - rank)))
        << "message " << i << " of " << messages[i].bytes << " bytes to rank " << rank;
  }
}

TEST(SlowLinks, MessagesInPiecesOfAnySizeArriveWhole) {
  for_each_seed(25, [](Rng& rng) {
    Pair pair(rng.next(), {.most_bytes = rng.one_of<int64_t>({1, 7, 40, 5000, 1 << 16}),
                           .most_pause_us = rng.one_of<int64_t>({0, 20})});
    const int64_t most = rng.one_of<int64_t>({20, 3000});
    std::vector<Message> messages;
    std::vector<size_t> orders[2];
    for (int tag = 0; tag < 12; ++tag) {
      messages.push_back({rng.between(0, most), tag});
      for (auto& order : orders) order.push_back(static_cast<size_t>(tag));
    }
    for (auto& order : orders) rng.shuffle(order);
    std::thread other([&] { exchange(pair, messages, orders[1], 1); });
    exchange(pair, messages, orders[0], 0);
    other.join();
  });
}

TEST(SlowLinks, AWaitEndsInAStallAndTheMessageComesAfterIt) {
  for_each_seed(5, [](Rng& rng) {
    Pair pair(rng.next(), {.most_bytes = 1000});
    const at::Tensor room = at::zeros({100'000}, at::kByte);
    const auto come = pair.ranks[1]->receive_piece(room, 0, 1);
    const auto sent = pair.ranks[0]->send_piece(values(100'000, 1), 1, 1);
    pair.ranks[0]->progress_once();
    pair.proxy.stall();
    const auto begin = Clock::now();
    EXPECT_NE(error_of([&] { come->wait(milliseconds(200)); }).find("no answer within 200 ms"),
              std::string::npos);
    EXPECT_LT(Clock::now() - begin, std::chrono::seconds(10));
    pair.proxy.resume();
    EXPECT_TRUE(sent->wait(kPatience));
    EXPECT_TRUE(come->wait(kPatience));
    EXPECT_TRUE(at::equal(room, values(100'000, 1)));
  });
}

/// Bytes that trickle in are no reason to wait longer.
TEST(SlowLinks, AWaitEndsInTimeWhileBytesFlow) {
  Pair pair(1, {.most_bytes = 200, .most_pause_us = 100});
  const at::Tensor room = at::zeros({50'000'000}, at::kByte);
  const auto come = pair.ranks[1]->receive_piece(room, 0, 1);
  std::thread sender([&] {
    error_of([&] { pair.ranks[0]->send_piece(values(50'000'000, 1), 1, 1)->wait(kPatience); });
  });
  const auto begin = Clock::now();
  EXPECT_NE(error_of([&] { come->wait(milliseconds(500)); }).find("no answer within"),
            std::string::npos);
  EXPECT_LT(Clock::now() - begin, std::chrono::seconds(5));
  pair.proxy.cut();
  sender.join();
}

TEST(SlowLinks, ALinkThatBreaksInsideAMessageIsAnErrorOnBothSides) {
  for_each_seed(20, [](Rng& rng) {
    Pair pair(rng.next(), {.most_bytes = 500, .most_pause_us = 20});
    const auto fails = [&](int rank) {
      const at::Tensor room = at::zeros({1'000'000}, at::kByte);
      const auto sent = pair.ranks[rank]->send_piece(values(1'000'000, rank), 1 - rank, 1);
      const auto come = pair.ranks[rank]->receive_piece(room, 1 - rank, 1);
      const auto error = error_of([&] {
        come->wait(kPatience);
        sent->wait(kPatience);
      });
      EXPECT_NE(error.find("the link broke"), std::string::npos) << error;
    };
    std::thread other([&] { fails(1); });
    std::thread cutter([&, after = rng.between(0, 3)] {
      std::this_thread::sleep_for(milliseconds(after));
      pair.proxy.cut();
    });
    fails(0);
    other.join();
    cutter.join();
  });
}

}  // namespace slow_transport_test
}  // namespace tessera::comm
