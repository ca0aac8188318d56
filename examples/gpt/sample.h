#pragma once

#include <string>

#include "model.h"
#include "tessera/mesh/device_mesh.h"

namespace gpt {

/// Text that the model writes by itself, byte after byte; the same on every rank.
std::string write_sample(Gpt& model, const Settings& settings, const tessera::DeviceMesh& mesh);

}  // namespace gpt
