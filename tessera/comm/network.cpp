#include "tessera/comm/network.h"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <fstream>
#include <memory>

namespace tessera::comm {
namespace {

std::string address_text(const sockaddr* address, socklen_t size) {
  std::array<char, NI_MAXHOST> text{};
  const int error =
      getnameinfo(address, size, text.data(), text.size(), nullptr, 0, NI_NUMERICHOST);
  return error == 0 ? std::string(text.data()) : std::string();
}

/// Connecting a datagram socket sends nothing but makes the kernel choose a route.
std::string routed_address(const addrinfo& target) {
  const int fd = socket(target.ai_family, SOCK_DGRAM, 0);
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

}  // namespace

bool is_loopback(const std::string& host) {
  return host == "localhost" || host == "::1" || host.rfind("127.", 0) == 0;
}

std::string address_towards(const std::string& host, int port) {
  addrinfo hints{};
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = SOCK_DGRAM;
  addrinfo* targets = nullptr;
  std::string found;
  if (getaddrinfo(host.c_str(), std::to_string(port).c_str(), &hints, &targets) == 0) {
    const std::unique_ptr<addrinfo, decltype(&freeaddrinfo)> owner(targets, &freeaddrinfo);
    for (const addrinfo* at = targets; at != nullptr && found.empty(); at = at->ai_next) {
      found = routed_address(*at);
    }
  }
  return found.empty() || is_loopback(found) ? first_outer_address() : found;
}

std::string machine_identity() {
  std::array<char, 256> name{};
  gethostname(name.data(), name.size() - 1);
  // Containers of one machine share the boot number but not, as a rule, the name.
  return std::string(name.data()) + " " + first_line("/proc/sys/kernel/random/boot_id");
}

}  // namespace tessera::comm
