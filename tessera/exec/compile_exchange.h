#pragma once

#include <span>
#include <vector>

#include "tessera/exec/program.h"

/// Actions in which each pair of ranks exchanges a piece: all_to_all, and the transfer between two
/// meshes. Internal to exec.
namespace tessera::exec {

/// Computes the pieces to and from each peer, given the overlap of each pair; `me` is my index
/// among them. The action's shapes must be set.
void compile_exchange(Action& action, std::span<const Overlap> to_peer,
                      std::span<const Overlap> from_peer, size_t me);

/// Returns the participating ranks, those of both meshes.
std::vector<int> compile_transfer(Action& action, const plan::Step& step);

}  // namespace tessera::exec
