#pragma once

#include <c10/util/intrusive_ptr.h>

#include <memory>
#include <span>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include "tessera/base/api.h"
#include "tessera/comm/world.h"
#include "tessera/mesh/device_mesh.h"

namespace tessera::comm {

/// mesh_from_groups (world.h) in an existing world that can create groups, as merged steps need
/// them. An axis whose ranks already have a group in the world keeps that one.
TESSERA_API DeviceMesh adopt_mesh(const DeviceMesh& mesh, std::shared_ptr<RankWorld> world,
                                  std::span<const c10::intrusive_ptr<c10d::ProcessGroup>> groups);

}  // namespace tessera::comm
