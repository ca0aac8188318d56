#pragma once

#include <string>

/// Which of this machine's addresses other ranks can reach.
namespace tessera::comm {

/// "localhost", "127.0.0.1", "::1".
bool is_loopback(const std::string& host);

/// The address from which this machine reaches `host`; if that is a loopback address (Debian maps
/// a machine's own name to 127.0.1.1), the first other one; "" if there is none.
std::string address_towards(const std::string& host, int port);

/// Equal for two processes if and only if they run on the same machine and see the same network.
std::string machine_identity();

}  // namespace tessera::comm
