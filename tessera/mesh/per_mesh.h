#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "tessera/mesh/device_mesh.h"

namespace tessera {

/// A State for each mesh and set of its axes (a bit each), default-constructed at its first use.
/// For what the ranks along these axes must all have in the same state: it may depend on their
/// calls over these axes, but not on others, which ranks need not have in common. Entries of worlds
/// that ended are removed; there are few, so they are searched in order. Not synchronized: of one
/// thread, or of what one rank alone uses.
template <class State>
class PerMesh {
 public:
  State& of(const DeviceMesh& mesh, uint64_t axes) {
    for (Entry& entry : entries_) {
      const bool fits = entry.id == mesh.id() && entry.axes == axes;
      if (fits && !entry.alive.expired()) return *entry.state;
    }
    std::erase_if(entries_, [](const Entry& entry) { return entry.alive.expired(); });
    entries_.push_back({mesh.id(), axes, mesh.world(), std::make_unique<State>()});
    return *entries_.back().state;
  }

  template <class Visit>
  void for_each(const Visit& visit) {
    for (Entry& entry : entries_) visit(*entry.state);
  }

 private:
  struct Entry {
    const DeviceMesh::Node* id;
    uint64_t axes;
    std::weak_ptr<const void> alive;
    std::unique_ptr<State> state;  // stays where it is while `visit` frees tensors
  };
  std::vector<Entry> entries_;
};

}  // namespace tessera
