#pragma once

#include <span>
#include <vector>

#include "tessera/exec/program.h"

/// Actions in which each pair of ranks exchanges a piece: all_to_all, and the move between two
/// meshes. Inside exec only.
namespace tessera::exec {

/// Pieces to and from each peer, given what each pair shares; `me` is my place among them. The
/// action's shapes must be there.
void compile_exchange(Action& action, std::span<const Overlap> to_peer,
                      std::span<const Overlap> from_peer, size_t me);

/// Returns the ranks that take part, those of both meshes.
std::vector<int> compile_transfer(Action& action, const plan::Step& step);

}  // namespace tessera::exec
