#pragma once

#include "model.h"
#include "tessera/mesh/device_mesh.h"

/// Who holds what on a mesh of axes dp and tp.
namespace gpt {

/// Shards heads, hidden units and the vocabulary of the head over tp, and what each rank then has
/// over dp: gathered block by block when it is used. Parameters get random values that depend on
/// the seed alone, not on the mesh.
void distribute(Gpt& model, const Settings& settings, const tessera::DeviceMesh& mesh);

}  // namespace gpt
