#pragma once

#include <span>
#include <string>

#include "tessera/mesh/device_mesh.h"

namespace tessera {

/// The label of a group of ranks over several axes: "dp+tp"; "" for no axes.
std::string axes_text(const DeviceMesh& mesh, std::span<const int> axes);

}  // namespace tessera
