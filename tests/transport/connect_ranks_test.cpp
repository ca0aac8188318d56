// How the ranks of a group connect: side by side, past strangers, signals and silence.
#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <array>
#include <atomic>
#include <csignal>
#include <future>
#include <span>
#include <sstream>
#include <thread>
#include <torch/csrc/distributed/c10d/HashStore.hpp>

#include "tessera/transport/link_handshake.h"
#include "tessera/transport/socket_transport.h"
#include "tests/support/processes.h"

namespace tessera::comm {
namespace connect_ranks_test {

using std::chrono::milliseconds;
using testing::error_of;
using WorkPtr = c10::intrusive_ptr<c10d::Work>;

constexpr milliseconds kPatience(20000);

LinkOptions link_options(int rank, int size) {
  return {.rank = rank, .size = size, .address = "127.0.0.1", .timeout = kPatience};
}

/// A connection to where rank 0 listens; none if it does not listen any more.
Socket knock_at_first(c10d::Store& store) {
  std::istringstream place(store.get_to_str("links/0"));
  std::string address;
  uint16_t port = 0;
  place >> address >> port;
  Socket socket(::socket(AF_INET, SOCK_STREAM, 0));
  sockaddr_in at{};
  at.sin_family = AF_INET;
  at.sin_port = htons(port);
  at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  const bool open = connect(socket.fd(), reinterpret_cast<sockaddr*>(&at), sizeof(at)) == 0;
  return open ? std::move(socket) : Socket();
}

Socket connect_to_first(c10d::Store& store) {
  Socket socket = knock_at_first(store);
  EXPECT_TRUE(socket);
  return socket;
}

/// Says to rank 0 what no rank would say.
void knock_as_stranger(c10d::Store& store) {
  const Socket socket = connect_to_first(store);
  const std::array<int64_t, 2> greeting = {12345, 1};  // an unknown token, the rank of another
  EXPECT_EQ(::send(socket.fd(), greeting.data(), sizeof(greeting), MSG_NOSIGNAL),
            ssize_t(sizeof(greeting)));
}

TEST(ConnectRanks, EachPairHasAConnectionAndStrangersHaveNone) {
  constexpr int kRanks = 4;
  const auto store = c10::make_intrusive<c10d::HashStore>();
  std::vector<std::thread> threads;
  std::promise<void> knocked;
  const std::shared_future<void> after_knock = knocked.get_future().share();
  for (int rank = 0; rank < kRanks; ++rank) {
    threads.emplace_back([&, rank] {
      if (rank > 0) after_knock.wait();
      auto links =
          std::make_shared<SocketTransport>(connect_ranks(*store, link_options(rank, kRanks)));
      std::vector<WorkPtr> works;
      at::Tensor from = at::zeros({kRanks});
      for (int peer = 0; peer < kRanks; ++peer) {
        if (peer == rank) continue;
        works.push_back(links->send_piece(at::full({1}, rank, at::kFloat), peer, 0));
        works.push_back(links->receive_piece(from.narrow(0, peer, 1), peer, 0));
      }
      for (const auto& work : works) EXPECT_TRUE(work->wait(kPatience));
      from[rank] = rank;
      EXPECT_TRUE(at::equal(from, at::arange(kRanks, at::kFloat)));
    });
  }
  knock_as_stranger(*store);
  knocked.set_value();
  for (auto& thread : threads) thread.join();
}

/// Each rank's sockets, or what it threw.
struct Outcome {
  std::vector<Socket> sockets;
  std::string error;
};

std::vector<Outcome> connect_all(c10d::Store& store, std::span<const LinkOptions> ranks) {
  std::vector<Outcome> outcomes(ranks.size());
  std::vector<std::thread> threads;
  for (size_t i = 0; i < ranks.size(); ++i) {
    threads.emplace_back([&, i] {
      outcomes[i].error = error_of([&] { outcomes[i].sockets = connect_ranks(store, ranks[i]); });
    });
  }
  for (auto& thread : threads) thread.join();
  return outcomes;
}

/// One after the other they would cost their limit each, or fill the queue of the port.
TEST(ConnectRanks, SilentStrangersDelayNoRank) {
  const auto store = c10::make_intrusive<c10d::HashStore>();
  std::vector<Socket> strangers;
  std::thread other([&] {
    for (int i = 0; i < 100; ++i) strangers.push_back(connect_to_first(*store));
    EXPECT_EQ(connect_ranks(*store, link_options(1, 2)).size(), 2u);
  });
  const auto begin = std::chrono::steady_clock::now();
  EXPECT_EQ(connect_ranks(*store, link_options(0, 2)).size(), 2u);
  other.join();
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(4));
}

TEST(ConnectRanks, OnlyThoseWhoKnowTheSecretConnect) {
  for (const bool same : {true, false}) {
    const auto store = c10::make_intrusive<c10d::HashStore>();
    std::vector<LinkOptions> ranks = {link_options(0, 2), link_options(1, 2)};
    for (LinkOptions& options : ranks) options.timeout = milliseconds(same ? 20000 : 1000);
    ranks[0].secret = "a";
    ranks[1].secret = same ? "a" : "b";
    const auto outcomes = connect_all(*store, ranks);
    EXPECT_EQ(outcomes[0].sockets.size(), same ? 2u : 0u) << outcomes[0].error;
    EXPECT_EQ(outcomes[1].sockets.size(), same ? 2u : 0u) << outcomes[1].error;
    if (same) continue;
    EXPECT_NE(outcomes[0].error.find("did not connect within 1000 ms: index 1"), std::string::npos)
        << outcomes[0].error;
    EXPECT_NE(outcomes[1].error.find("not a rank of this group"), std::string::npos)
        << outcomes[1].error;
  }
}

/// What a stranger overheard of one connection does not open another: the numbers are new.
TEST(ConnectRanks, AnAnswerCannotBeReplayed) {
  const Digest key = sha256("key");
  std::string overheard;
  for (const bool replay : {false, true}) {
    int fds[2];
    ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, fds), 0);
    auto listener = LinkHandshake::from_anyone(Socket(fds[0]), key);
    if (replay) {
      const Socket stranger(fds[1]);
      ASSERT_EQ(::send(fds[1], overheard.data(), overheard.size(), 0), ssize_t(overheard.size()));
      EXPECT_EQ(listener.progress(), LinkHandshake::State::failed);
      continue;
    }
    auto connector = LinkHandshake::to(0, 3, Socket(fds[1]), key);
    EXPECT_EQ(connector.progress(), LinkHandshake::State::under_way);
    std::array<char, 256> bytes;
    const auto peek = [&] {
      const auto got = recv(fds[0], bytes.data(), bytes.size(), MSG_PEEK);
      return std::string(bytes.data(), size_t(std::max<ssize_t>(got, 0)));
    };
    overheard = peek();
    EXPECT_EQ(listener.progress(), LinkHandshake::State::under_way);
    EXPECT_EQ(connector.progress(), LinkHandshake::State::under_way);
    overheard += peek();
    EXPECT_EQ(listener.progress(), LinkHandshake::State::done);
    EXPECT_EQ(listener.peer(), 3);
    EXPECT_EQ(connector.progress(), LinkHandshake::State::done);
  }
}

/// A connector's last message may reach a listener that closed the connection meanwhile, because it
/// made room or the connector was stopped for a while. Both ends must learn of it.
TEST(ConnectRanks, AConnectorWhoseConnectionWasClosedTriesAgain) {
  const Digest key = sha256("key");
  int fds[2];
  ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, fds), 0);
  auto connector = LinkHandshake::to(0, 1, Socket(fds[1]), key);
  {
    auto listener = LinkHandshake::from_anyone(Socket(fds[0]), key);
    EXPECT_EQ(connector.progress(), LinkHandshake::State::under_way);
    EXPECT_EQ(listener.progress(), LinkHandshake::State::under_way);
    EXPECT_EQ(connector.progress(), LinkHandshake::State::under_way);  // it sent its proof
  }
  EXPECT_EQ(connector.progress(), LinkHandshake::State::failed);
  EXPECT_TRUE(connector.was_dropped());
}

/// More strangers than may wait come at once, while ranks connect.
TEST(ConnectRanks, ACrowdOfStrangersKeepsNoRankOut) {
  const auto store = c10::make_intrusive<c10d::HashStore>();
  std::vector<std::thread> crowds;
  for (int crowd = 0; crowd < 2; ++crowd) {
    crowds.emplace_back([&] {
      std::vector<Socket> strangers;
      for (int i = 0; i < 500; ++i) strangers.push_back(knock_at_first(*store));
    });
  }
  std::vector<LinkOptions> ranks;
  for (int rank = 0; rank < 4; ++rank) ranks.push_back(link_options(rank, 4));
  const auto outcomes = connect_all(*store, ranks);
  for (auto& crowd : crowds) crowd.join();
  for (const Outcome& outcome : outcomes) EXPECT_EQ(outcome.sockets.size(), 4u) << outcome.error;
}

/// Signals come all the time, as with profilers; no wait may end by one.
TEST(ConnectRanks, SignalsInterruptNothing) {
  struct sigaction ignore_it {};
  ignore_it.sa_handler = [](int) {};
  struct sigaction before {};
  sigaction(SIGUSR1, &ignore_it, &before);  // without SA_RESTART
  const auto store = c10::make_intrusive<c10d::HashStore>();
  std::atomic<bool> done{false};
  std::vector<std::thread> ranks;
  for (int rank = 0; rank < 3; ++rank) {
    ranks.emplace_back([&, rank] {
      if (rank == 2) std::this_thread::sleep_for(milliseconds(100));
      EXPECT_EQ(error_of([&] { connect_ranks(*store, link_options(rank, 3)); }), "");
    });
  }
  std::vector<pthread_t> handles;
  for (auto& rank : ranks) handles.push_back(rank.native_handle());
  std::thread signals([&] {
    while (!done) {
      for (const pthread_t handle : handles) pthread_kill(handle, SIGUSR1);
      std::this_thread::sleep_for(std::chrono::microseconds(200));
    }
  });
  // A thread that has ended but was not joined may still get signals.
  std::this_thread::sleep_for(milliseconds(300));
  done = true;
  signals.join();
  for (auto& rank : ranks) rank.join();
  sigaction(SIGUSR1, &before, nullptr);
}

TEST(ConnectRanks, WhoWaitsLooksAroundMeanwhile) {
  const auto store = c10::make_intrusive<c10d::HashStore>();
  const c10::intrusive_ptr<c10d::Store> texts = store;
  texts->set("links/1", "127.0.0.1 1 token");  // it never connects
  LinkOptions options = link_options(0, 2);
  options.look_around = [] { throw std::runtime_error("rank 1 failed first"); };
  EXPECT_EQ(error_of([&] { connect_ranks(*store, options); }), "other: rank 1 failed first");
}

TEST(ConnectRanks, IfOneRankCannotListenNoneConnects) {
  const auto store = c10::make_intrusive<c10d::HashStore>();
  std::thread other([&] { EXPECT_TRUE(connect_ranks(*store, link_options(1, 2)).empty()); });
  LinkOptions nowhere = link_options(0, 2);
  nowhere.address = "";
  EXPECT_TRUE(connect_ranks(*store, nowhere).empty());
  other.join();
}

}  // namespace connect_ranks_test
}  // namespace tessera::comm
