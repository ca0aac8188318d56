#pragma once

#include <c10/util/intrusive_ptr.h>

#include <memory>
#include <span>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include "tessera/comm/world.h"
#include "tessera/mesh/device_mesh.h"

namespace tessera::comm {

/// mesh_from_groups (world.h) in a world that exists and can make groups, as it does for those that
/// merged steps need. An axis whose ranks have a group there keeps that one.
DeviceMesh adopt_mesh(const DeviceMesh& mesh, std::shared_ptr<RankWorld> world,
                      std::span<const c10::intrusive_ptr<c10d::ProcessGroup>> groups);

}  // namespace tessera::comm
