#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace gloo::transport {
class Device;
}

/// The network devices on which Gloo listens for the other ranks.
namespace tessera::comm {

/// The value of GLOO_SOCKET_IFNAME, as PyTorch reads it: comma-separated names, or empty.
std::string_view named_interfaces();

/// One device per named interface; if none is named, the one of `address`, and if that is empty,
/// the one this machine's name resolves to.
std::vector<std::shared_ptr<::gloo::transport::Device>> gloo_devices(const std::string& address);

}  // namespace tessera::comm
