#include "tessera/comm/sockets.h"

#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <memory>
#include <optional>
#include <random>
#include <sstream>
#include <stdexcept>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include "tessera/base/text.h"
#include "tessera/comm/deadline.h"

namespace tessera::comm {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

/// What whoever connects says first: others may find the port too.
struct Greeting {
  uint64_t token = 0;  // that the listener put on the store
  int64_t rank = 0;
};

/// A rank greets at once. A stranger who says nothing must not keep the others waiting.
constexpr milliseconds kGreetsWithin(10'000);

struct Listener {
  Socket socket;
  int port = 0;
  uint64_t token = 0;
};

using Addresses = std::unique_ptr<addrinfo, decltype(&freeaddrinfo)>;

Addresses resolve(const std::string& address, int port) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_NUMERICHOST | AI_NUMERICSERV;
  addrinfo* found = nullptr;
  if (getaddrinfo(address.c_str(), std::to_string(port).c_str(), &hints, &found) != 0) {
    found = nullptr;
  }
  return {found, &freeaddrinfo};
}

Socket make_socket(const addrinfo& at) {
  return Socket(socket(at.ai_family, at.ai_socktype | SOCK_CLOEXEC, at.ai_protocol));
}

std::optional<Listener> listen_at(const std::string& address, int backlog) {
  const Addresses at = address.empty() ? Addresses{nullptr, &freeaddrinfo} : resolve(address, 0);
  if (at == nullptr) return std::nullopt;
  Listener out{make_socket(*at), 0, 0};
  sockaddr_storage bound{};
  socklen_t size = sizeof(bound);
  auto* own = reinterpret_cast<sockaddr*>(&bound);
  if (!out.socket || bind(out.socket.fd(), at->ai_addr, at->ai_addrlen) != 0 ||
      listen(out.socket.fd(), backlog) != 0 || getsockname(out.socket.fd(), own, &size) != 0) {
    return std::nullopt;
  }
  out.port = ntohs(bound.ss_family == AF_INET6 ? reinterpret_cast<sockaddr_in6&>(bound).sin6_port
                                               : reinterpret_cast<sockaddr_in&>(bound).sin_port);
  std::random_device random;
  out.token = uint64_t{random()} << 32 | random();
  return out;
}

/// As messages are moved: at once, and without waiting.
void prepare(const Socket& socket) {
  const int on = 1;
  setsockopt(socket.fd(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
  fcntl(socket.fd(), F_SETFL, fcntl(socket.fd(), F_GETFL) | O_NONBLOCK);
}

void limit(const Socket& socket, int option, milliseconds time) {
  const auto microseconds = std::max<int64_t>(time.count(), 1) * 1000;
  const timeval value{microseconds / 1'000'000, microseconds % 1'000'000};
  setsockopt(socket.fd(), SOL_SOCKET, option, &value, sizeof(value));
}

Socket connect_to(const std::string& place, int rank, milliseconds timeout) {
  std::istringstream in(place);
  std::string address;
  int port = 0;
  Greeting greeting{0, rank};
  in >> address >> port >> greeting.token;
  const Addresses at = resolve(address, port);
  Socket socket = at != nullptr ? make_socket(*at) : Socket();
  if (socket) limit(socket, SO_SNDTIMEO, timeout);
  if (!socket || connect(socket.fd(), at->ai_addr, at->ai_addrlen) != 0 ||
      send(socket.fd(), &greeting, sizeof(greeting), MSG_NOSIGNAL) != sizeof(greeting)) {
    throw std::runtime_error(
        join_text("no connection to ", address, ":", port, ": ", std::strerror(errno)));
  }
  prepare(socket);
  return socket;
}

/// Takes one connection; none if it is nobody we know, or nobody came for a while.
std::optional<std::pair<int64_t, Socket>> accept_from(const Listener& listener,
                                                      milliseconds timeout) {
  pollfd waiting{listener.socket.fd(), POLLIN, 0};
  const auto a_while = std::min(timeout, milliseconds(60'000));
  if (poll(&waiting, 1, static_cast<int>(a_while.count())) <= 0) return std::nullopt;
  Socket socket(accept4(listener.socket.fd(), nullptr, nullptr, SOCK_CLOEXEC));
  if (!socket) {
    if (errno == ECONNABORTED || errno == EINTR || errno == EAGAIN) return std::nullopt;
    throw std::runtime_error(join_text("cannot take a connection: ", std::strerror(errno)));
  }
  limit(socket, SO_RCVTIMEO, std::min(timeout, kGreetsWithin));
  Greeting greeting;
  const auto got = recv(socket.fd(), &greeting, sizeof(greeting), MSG_WAITALL);
  if (got != sizeof(greeting) || greeting.token != listener.token) return std::nullopt;
  prepare(socket);
  return std::pair(greeting.rank, std::move(socket));
}

std::string key_of(int rank) { return join_text("links/", rank); }

}  // namespace

Socket::~Socket() {
  if (fd_ >= 0) close(fd_);
}

std::vector<Socket> connect_ranks(c10d::Store& store, int rank, int size,
                                  const std::string& address, milliseconds timeout) {
  const auto listener = listen_at(address, size);
  const std::string mine =
      listener ? join_text(address, " ", listener->port, " ", listener->token) : std::string("-");
  store.set(key_of(rank), mine);
  std::vector<std::string> places;
  bool all = true;
  for (int peer = 0; peer < size; ++peer) {
    places.push_back(peer == rank ? mine : store.get_to_str(key_of(peer)));
    all = all && places.back() != "-";
  }
  if (!all) return {};
  const auto deadline = deadline_after(timeout);
  const auto left = [&] {
    return std::max(milliseconds(1),
                    std::chrono::duration_cast<milliseconds>(deadline - Clock::now()));
  };
  std::vector<Socket> sockets(static_cast<size_t>(size));
  for (int peer = 0; peer < rank; ++peer) {
    sockets[static_cast<size_t>(peer)] =
        connect_to(places[static_cast<size_t>(peer)], rank, left());
  }
  for (int missing = size - 1 - rank; missing > 0;) {
    if (Clock::now() >= deadline) {
      throw std::runtime_error(join_text("of ", size, " ranks ", missing,
                                         " did not connect within ", timeout.count(), " ms"));
    }
    auto came = accept_from(*listener, left());
    if (!came || came->first <= rank || came->first >= size) continue;
    Socket& place = sockets[static_cast<size_t>(came->first)];
    if (!place) --missing;
    place = std::move(came->second);
  }
  return sockets;
}

}  // namespace tessera::comm
