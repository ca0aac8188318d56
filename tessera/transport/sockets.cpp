#include "tessera/transport/sockets.h"

#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <list>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string_view>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include "tessera/base/errors.h"
#include "tessera/collective/deadline.h"
#include "tessera/liveness/poll.h"
#include "tessera/transport/descriptors.h"
#include "tessera/transport/link_handshake.h"

namespace tessera::comm {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

constexpr milliseconds kLookAround(500);
/// A rank sends its greeting immediately; a connection that is silent for this long is not a
/// rank's.
constexpr milliseconds kGreetsWithin(5000);
/// Unauthenticated connections at a time, in addition to one per rank; beyond that the oldest is
/// closed.
constexpr size_t kMaxUnauthenticated = 64;
/// A connection that the other end closed early, as to make room, is tried again after a pause,
/// which doubles up to a limit.
constexpr milliseconds kFirstPause(1);
constexpr int kMostDoublings = 7;

struct Listener {
  Socket socket;
  int port = 0;
  std::string token;  // random, known to readers of the store
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

/// Whether accept4() reports a network error of the connection that it took from the queue: the
/// next one may be sound.
bool is_of_one_connection(int error) {
  constexpr std::array<int, 9> kErrors = {ECONNABORTED, EPROTO,      ENOPROTOOPT,
                                          ENETDOWN,     ENETUNREACH, EHOSTDOWN,
                                          EHOSTUNREACH, ENONET,      EOPNOTSUPP};
  return std::ranges::find(kErrors, error) != kErrors.end();
}

Socket make_socket(const addrinfo& at) {
  Socket made(socket(at.ai_family, at.ai_socktype | SOCK_CLOEXEC | SOCK_NONBLOCK, at.ai_protocol));
  if (!made && errno == EMFILE) throw NotSupported(errno_text(errno));
  return made;
}

std::optional<Listener> listen_at(const std::string& address) {
  const Addresses at = address.empty() ? Addresses{nullptr, &freeaddrinfo} : resolve(address, 0);
  if (at == nullptr) return std::nullopt;
  Listener out{make_socket(*at), 0, hex_text(random_bytes(16))};
  sockaddr_storage bound{};
  socklen_t size = sizeof(bound);
  auto* own = reinterpret_cast<sockaddr*>(&bound);
  if (!out.socket || bind(out.socket.fd(), at->ai_addr, at->ai_addrlen) != 0 ||
      listen(out.socket.fd(), SOMAXCONN) != 0 || getsockname(out.socket.fd(), own, &size) != 0) {
    return std::nullopt;
  }
  out.port = ntohs(bound.ss_family == AF_INET6 ? reinterpret_cast<sockaddr_in6&>(bound).sin6_port
                                               : reinterpret_cast<sockaddr_in&>(bound).sin_port);
  return out;
}

/// Disables Nagle's algorithm: small messages are sent immediately.
void prepare(const Socket& socket) {
  const int on = 1;
  setsockopt(socket.fd(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
}

std::string key_of(int rank) { return join_text("links/", rank); }

/// The address of a rank, as it published it on the store.
struct Place {
  std::string address;
  int port = 0;
  std::string token;
};

/// "127.0.0.1 4242 c0ffee"; what is missing stays empty.
Place parse_place(std::string_view text) {
  const auto next_word = [&text] {
    const size_t end = std::min(text.find(' '), text.size());
    const std::string_view word = text.substr(0, end);
    text.remove_prefix(std::min(end + 1, text.size()));
    return word;
  };
  Place place;
  place.address = next_word();
  const std::string_view port = next_word();
  std::from_chars(port.data(), port.data() + port.size(), place.port);
  place.token = next_word();
  return place;
}

/// Opens all connections of one rank concurrently.
class LinkSetup {
 public:
  LinkSetup(const LinkOptions& options, const Listener& listener, std::vector<Place> places)
      : options_(options),
        listener_(listener),
        places_(std::move(places)),
        tries_(places_.size(), 0),
        sockets_(places_.size()),
        missing_(options.size - 1),
        deadline_(deadline_after(options.timeout)) {}

  std::vector<Socket> run() {
    for (int peer = 0; peer < options_.rank; ++peer) connect_to(peer);
    auto look_around = Clock::now() + kLookAround;
    while (missing_ > 0) {
      await_sockets();
      accept_all();
      progress_all();
      connect_again();
      const auto now = Clock::now();
      if (missing_ > 0 && now >= deadline_) throw_missing();
      if (now >= look_around) {
        options_.look_around();
        look_around = now + kLookAround;
      }
    }
    return std::move(sockets_);
  }

 private:
  struct Opening {
    LinkHandshake handshake;
    Clock::time_point since;
    bool ours;  // this end connects
  };
  struct Retry {
    int peer;
    Clock::time_point when;
  };

  Digest key_at(int listener_rank) const {
    return hmac_sha256(options_.secret,
                       "link " + places_[static_cast<size_t>(listener_rank)].token);
  }

  void connect_to(int peer) {
    const Place& place = places_[static_cast<size_t>(peer)];
    ++tries_[static_cast<size_t>(peer)];
    const Addresses at = resolve(place.address, place.port);
    Socket socket = at != nullptr ? make_socket(*at) : Socket();
    // An interrupted connect continues in the background, like a non-blocking one.
    if (!socket || (connect(socket.fd(), at->ai_addr, at->ai_addrlen) != 0 &&
                    errno != EINPROGRESS && errno != EINTR)) {
      throw_unreachable(peer, errno_text(errno));
    }
    opening_.push_back({LinkHandshake::to(peer, options_.rank, std::move(socket), key_at(peer)),
                        Clock::now(), true});
  }

  void await_sockets() {
    std::vector<pollfd> waiting = {{listener_.socket.fd(), POLLIN, 0}};
    for (const Opening& one : opening_) {
      waiting.push_back({one.handshake.fd(), one.handshake.events(), 0});
    }
    auto until = deadline_;
    for (const Retry& retry : retries_) until = std::min(until, retry.when);
    const auto left = std::chrono::ceil<milliseconds>(until - Clock::now());
    poll(waiting.data(), waiting.size(),
         static_cast<int>(std::clamp<int64_t>(left.count(), 0, kLookAround.count())));
  }

  void accept_all() {
    for (;;) {
      Socket socket(accept4(listener_.socket.fd(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
      if (!socket) {
        if (errno == EINTR || is_of_one_connection(errno)) continue;
        if (errno == EAGAIN || errno == EWOULDBLOCK) return;
        if (errno == EMFILE && drop_oldest_stranger()) continue;
        throw NotSupported(join_text("cannot take a connection: ", errno_text(errno)));
      }
      opening_.push_back({LinkHandshake::from_anyone(std::move(socket), key_at(options_.rank)),
                          Clock::now(), false});
      if (opening_.size() > places_.size() + kMaxUnauthenticated) drop_oldest_stranger();
    }
  }

  /// A rank greets at once, so those that have not greeted go first.
  bool drop_oldest_stranger() {
    const auto is_silent = [](const Opening& one) {
      return !one.ours && !one.handshake.has_greeted();
    };
    auto oldest = std::ranges::find_if(opening_, is_silent);
    if (oldest == opening_.end()) oldest = std::ranges::find(opening_, false, &Opening::ours);
    if (oldest == opening_.end()) return false;
    opening_.erase(oldest);
    return true;
  }

  void progress_all() {
    for (auto it = opening_.begin(); it != opening_.end();) {
      const auto state = it->handshake.progress();
      const bool silent = !it->ours && Clock::now() - it->since > kGreetsWithin;
      if (state == LinkHandshake::State::under_way && !silent) {
        ++it;
        continue;
      }
      Opening ended = std::move(*it);
      it = opening_.erase(it);
      if (state == LinkHandshake::State::done) {
        take(ended);
      } else if (ended.ours) {
        try_again(ended.handshake);
      }
    }
  }

  void take(Opening& done) {
    const int peer = done.handshake.peer();
    if (!done.ours && (peer <= options_.rank || peer >= options_.size)) return;
    Socket& place = sockets_[static_cast<size_t>(peer)];
    if (!place) --missing_;
    place = done.handshake.take_socket();
    prepare(place);
  }

  void try_again(const LinkHandshake& failed) {
    const int peer = failed.peer();
    if (!failed.was_dropped()) throw_unreachable(peer, failed.error());
    const int doublings = std::min(tries_[static_cast<size_t>(peer)], kMostDoublings);
    retries_.push_back({peer, Clock::now() + kFirstPause * (1 << doublings)});
    last_error_ = failed.error();
  }

  void connect_again() {
    const auto due = std::ranges::partition(
        retries_, [now = Clock::now()](const Retry& retry) { return retry.when > now; });
    const std::vector<Retry> now(due.begin(), due.end());
    retries_.erase(due.begin(), due.end());
    for (const Retry& retry : now) connect_to(retry.peer);
  }

  [[noreturn]] void throw_unreachable(int peer, const std::string& why) const {
    const Place& place = places_[static_cast<size_t>(peer)];
    throw std::runtime_error(join_text("no connection to index ", peer, " of the group at ",
                                       place.address, ":", place.port, ": ", why));
  }

  [[noreturn]] void throw_missing() const {
    std::vector<int> missing;
    for (int peer = 0; peer < options_.size; ++peer) {
      if (peer != options_.rank && !sockets_[static_cast<size_t>(peer)]) missing.push_back(peer);
    }
    throw std::runtime_error(
        join_text("of ", options_.size, " ranks ", missing.size(), " did not connect within ",
                  options_.timeout.count(), " ms: index ", list_text(missing), " of the group",
                  last_error_.empty() ? "" : "; the last connection: ", last_error_));
  }

  const LinkOptions& options_;
  const Listener& listener_;
  std::vector<Place> places_;
  std::vector<int> tries_;
  std::vector<Socket> sockets_;
  int missing_;
  Clock::time_point deadline_;
  std::list<Opening> opening_;  // by age
  std::vector<Retry> retries_;
  std::string last_error_;  // of a connection that the other end closed
};

/// What a rank published, once it has.
std::string published_by(int peer, c10d::Store& store, const LinkOptions& options,
                         Clock::time_point deadline) {
  const std::vector<std::string> keys = {key_of(peer)};
  const auto left = std::chrono::ceil<milliseconds>(deadline - Clock::now());
  if (poll_until(
          left, [&] { return store.check(keys); }, options.look_around)) {
    return store.get_to_str(keys[0]);
  }
  throw std::runtime_error(join_text("index ", peer, " of the group did not say within ",
                                     options.timeout.count(), " ms where it listens"));
}

}  // namespace

Socket::~Socket() {
  if (fd_ >= 0) close(fd_);
}

std::vector<Socket> connect_ranks(c10d::Store& store, const LinkOptions& options) {
  const auto listener = listen_at(options.address);
  const std::string mine =
      listener ? join_text(options.address, " ", listener->port, " ", listener->token)
               : std::string("-");
  store.set(key_of(options.rank), mine);
  const auto deadline = deadline_after(options.timeout);
  std::vector<Place> places;
  bool all = true;
  for (int peer = 0; peer < options.size; ++peer) {
    const std::string text =
        peer == options.rank ? mine : published_by(peer, store, options, deadline);
    all = all && text != "-";
    places.push_back(parse_place(text));
  }
  if (!all) return {};
  return LinkSetup(options, *listener, std::move(places)).run();
}

}  // namespace tessera::comm
