#pragma once

#include <chrono>
#include <optional>
#include <string>

/// Which of this machine's addresses other ranks can reach.
namespace tessera::comm {

/// "localhost", "127.0.0.1", "::1".
bool is_loopback(const std::string& host);

/// The address from which this machine reaches `host`. If that is a loopback address (Debian maps a
/// machine's own name to 127.0.1.1), the first other one; "" if there is none.
std::string address_towards(const std::string& host, int port);

/// This machine's name.
std::string host_name();

/// Whether a TCP connection to it can be opened.
bool answers_at(const std::string& host, int port, std::chrono::milliseconds timeout);

/// A socket bound to `port` of the single address of this machine that `host` resolves to. nullopt
/// if it resolves to several addresses, to another machine's, or, as a name, to a loopback address:
/// other machines may resolve it differently. Throws std::system_error if the port is in use. The
/// caller owns the socket.
std::optional<int> bind_where_host_is(const std::string& host, int port);

/// Equal for two processes if and only if they run on the same machine and in the same network
/// namespace (containers of one machine usually do not).
std::string machine_identity();

}  // namespace tessera::comm
