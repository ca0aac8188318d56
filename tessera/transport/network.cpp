#include "tessera/transport/network.h"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <sys/poll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <fstream>
#include <memory>
#include <set>
#include <system_error>

namespace tessera::comm {
namespace {

std::string address_text(const sockaddr* address, socklen_t size) {
  std::array<char, NI_MAXHOST> text{};
  const int error =
      getnameinfo(address, size, text.data(), text.size(), nullptr, 0, NI_NUMERICHOST);
  return error == 0 ? std::string(text.data()) : std::string();
}

/// poll() of one descriptor, which a signal does not end.
bool is_ready_within(std::chrono::milliseconds timeout, pollfd of) {
  const auto deadline = std::chrono::steady_clock::now() + timeout;
  for (;;) {
    const auto left =
        std::chrono::ceil<std::chrono::milliseconds>(deadline - std::chrono::steady_clock::now());
    const int ready = poll(&of, 1, static_cast<int>(std::max<int64_t>(left.count(), 0)));
    if (ready >= 0 || errno != EINTR) return ready == 1;
  }
}

/// Connecting a datagram socket sends nothing but makes the kernel choose a route.
std::string routed_address(const addrinfo& target) {
  const int fd = socket(target.ai_family, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  if (fd < 0) return {};
  std::string found;
  sockaddr_storage local{};
  socklen_t size = sizeof(local);
  if (connect(fd, target.ai_addr, target.ai_addrlen) == 0 &&
      getsockname(fd, reinterpret_cast<sockaddr*>(&local), &size) == 0) {
    found = address_text(reinterpret_cast<sockaddr*>(&local), size);
  }
  close(fd);
  return found;
}

std::string first_outer_address() {
  ifaddrs* list = nullptr;
  if (getifaddrs(&list) != 0) return {};
  const std::unique_ptr<ifaddrs, decltype(&freeifaddrs)> owner(list, &freeifaddrs);
  for (const ifaddrs* at = list; at != nullptr; at = at->ifa_next) {
    const bool usable = at->ifa_addr != nullptr && at->ifa_addr->sa_family == AF_INET &&
                        (at->ifa_flags & IFF_UP) != 0 && (at->ifa_flags & IFF_LOOPBACK) == 0;
    if (usable) return address_text(at->ifa_addr, sizeof(sockaddr_in));
  }
  return {};
}

std::string first_line(const char* path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}

using Addresses = std::unique_ptr<addrinfo, decltype(&freeaddrinfo)>;

Addresses look_up(const std::string& host, int port, int kind) {
  addrinfo hints{};
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = kind;
  addrinfo* found = nullptr;
  if (getaddrinfo(host.c_str(), std::to_string(port).c_str(), &hints, &found) != 0) found = nullptr;
  return {found, &freeaddrinfo};
}

}  // namespace

bool is_loopback(const std::string& host) {
  return host == "localhost" || host == "::1" || host.rfind("127.", 0) == 0;
}

std::string address_towards(const std::string& host, int port) {
  std::string found;
  const Addresses targets = look_up(host, port, SOCK_DGRAM);
  for (const addrinfo* at = targets.get(); at != nullptr && found.empty(); at = at->ai_next) {
    found = routed_address(*at);
  }
  return found.empty() || is_loopback(found) ? first_outer_address() : found;
}

std::string host_name() {
  std::array<char, 256> name{};
  gethostname(name.data(), name.size() - 1);
  return name.data();
}

bool answers_at(const std::string& host, int port, std::chrono::milliseconds timeout) {
  const Addresses targets = look_up(host, port, SOCK_STREAM);
  bool opens = false;
  for (const addrinfo* at = targets.get(); at != nullptr && !opens; at = at->ai_next) {
    const int fd = socket(at->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0) continue;
    int error = 0;
    socklen_t size = sizeof(error);
    opens = connect(fd, at->ai_addr, at->ai_addrlen) == 0 ||
            (errno == EINPROGRESS && is_ready_within(timeout, {fd, POLLOUT, 0}) &&
             getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &size) == 0 && error == 0);
    close(fd);
  }
  return opens;
}

std::optional<int> bind_where_host_is(const std::string& host, int port) {
  const bool loopback = is_loopback(host);
  // "localhost" may resolve to ::1 too, but every client also tries 127.0.0.1.
  const Addresses found = look_up(host == "localhost" ? "127.0.0.1" : host, port, SOCK_STREAM);
  std::set<std::string> addresses;
  for (const addrinfo* at = found.get(); at != nullptr; at = at->ai_next) {
    addresses.insert(address_text(at->ai_addr, at->ai_addrlen));
  }
  if (addresses.size() != 1 || is_loopback(*addresses.begin()) != loopback) return std::nullopt;
  const int fd = socket(found->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (fd < 0) throw std::system_error(errno, std::generic_category(), "socket");
  const int on = 1;
  setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
  if (bind(fd, found->ai_addr, found->ai_addrlen) == 0) return fd;
  const int error = errno;
  close(fd);
  if (error == EADDRNOTAVAIL) return std::nullopt;  // another machine's
  throw std::system_error(error, std::generic_category(), "bind");
}

std::string machine_identity() {
  // The boot id identifies a machine; containers of one machine differ in the network namespace.
  struct stat network {};
  const std::string boot = first_line("/proc/sys/kernel/random/boot_id");
  if (!boot.empty() && stat("/proc/self/ns/net", &network) == 0) {
    return boot + " net " + std::to_string(network.st_dev) + ":" + std::to_string(network.st_ino);
  }
  return host_name() + " " + boot;
}

}  // namespace tessera::comm
