#include "tessera/transport/gloo_devices.h"

#include <algorithm>
#include <cstdlib>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>

#include "tessera/base/errors.h"

namespace tessera::comm {

using c10d::ProcessGroupGloo;

std::string_view named_interfaces() {
  const char* named = std::getenv("GLOO_SOCKET_IFNAME");
  return named != nullptr ? named : "";
}

std::vector<std::shared_ptr<::gloo::transport::Device>> gloo_devices(const std::string& address) {
  if (named_interfaces().empty()) {
    return {address.empty() ? ProcessGroupGloo::createDefaultDevice()
                            : ProcessGroupGloo::createDeviceForHostname(address)};
  }
  std::vector<std::shared_ptr<::gloo::transport::Device>> devices;
  std::string_view rest = named_interfaces();
  while (!rest.empty()) {
    const size_t comma = std::min(rest.find(','), rest.size());
    const std::string interface(rest.substr(0, comma));
    rest.remove_prefix(std::min(comma + 1, rest.size()));
    if (interface.empty()) continue;
    devices.push_back(ProcessGroupGloo::createDeviceForInterface(interface));
  }
  require(!devices.empty(), "GLOO_SOCKET_IFNAME is \"", named_interfaces(),
          "\", which names no interface; write names with commas between them, or unset it");
  return devices;
}

}  // namespace tessera::comm
