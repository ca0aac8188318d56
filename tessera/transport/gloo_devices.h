#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace gloo::transport {
class Device;
}

/// Where Gloo listens for the other ranks.
namespace tessera::comm {

/// What GLOO_SOCKET_IFNAME says, as PyTorch reads it: names with commas between them, or nothing.
std::string_view named_interfaces();

/// One device for each of the named interfaces; if none is named, the one of `address`, and
/// without that, the one this machine's name resolves to.
std::vector<std::shared_ptr<::gloo::transport::Device>> gloo_devices(const std::string& address);

}  // namespace tessera::comm
