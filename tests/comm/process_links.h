#pragma once

#include <ATen/ATen.h>

#include <cstdlib>
#include <string>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>
#include <vector>

#include "tessera/base/iota_vector.h"
#include "tessera/comm/world.h"

/// What the scenarios of process tests share: the group of all ranks and a store of one's own.
namespace tessera::comm {

using Tensors = std::vector<at::Tensor>;

inline std::vector<int> everyone(const RankWorld& world) { return iota_vector<int>(world.size()); }

inline c10d::Backend& links_of(RankWorld& world, c10::DeviceType device = c10::DeviceType::CPU) {
  return world.group(everyone(world))->backend(device);
}

/// Waits for a sum of 2x3 ones over all ranks. SYNC=1 in the environment: as a synchronous call.
inline void all_reduce(RankWorld& world) {
  Tensors t = {at::ones({2, 3})};
  c10d::AllreduceOptions options;
  options.asyncOp = std::getenv("SYNC") == nullptr;
  links_of(world).allreduce(t, options)->wait();
}

/// At MASTER_PORT, which run_processes picks.
inline c10::intrusive_ptr<c10d::TCPStore> own_store(bool host) {
  c10d::TCPStoreOptions tcp;
  tcp.port = static_cast<uint16_t>(std::stoi(std::getenv("MASTER_PORT")));
  tcp.isServer = host;
  return c10::make_intrusive<c10d::TCPStore>("127.0.0.1", tcp);
}

}  // namespace tessera::comm
