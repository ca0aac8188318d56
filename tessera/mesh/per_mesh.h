#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "tessera/mesh/device_mesh.h"

namespace tessera {

/// A number of the object that all equal meshes share (DeviceMesh::id()). Unlike the address, no
/// later object of the process gets it.
uint64_t object_number(const DeviceMesh& mesh);

/// A State for each mesh and set of its axes (a bit each), default-constructed at its first use.
/// For what the ranks along these axes must all have in the same state: it may depend on their
/// calls over these axes, but not on others, which ranks need not have in common.
///
///   PerMesh<uint64_t> counts;
///   ++counts.of(init_device_mesh("tp=2"), 1);   1
///   ++counts.of(init_device_mesh("dp=2"), 1);   1, wherever the mesh is in memory
///   ++counts.of(init_device_mesh("tp=2"), 1);   2, also if the first tp=2 was freed in between
///
/// A state belongs to the mesh's value: its text, in its world. It does not belong to the mesh
/// object, because ranks free that at different times: one may hold it longer, in a cache, a cycle
/// or the traceback of an error. A state that ended with the object would then continue on that
/// rank and start anew on the others. Holding the mesh alive would be as good, but the mesh holds
/// its world, which then would not end.
///
/// So a state lasts as long as the world: one per text and set of axes that the program used.
/// States of worlds that ended are removed when another one is made. A mesh without a world has no
/// ranks to agree with; its state may be removed at any time.
///
/// Cost: a comparison of two integers for each state; a mesh object that is new to it, its text.
/// Not synchronized: of one thread, or of what one rank alone uses.
template <class State>
class PerMesh {
 public:
  State& of(const DeviceMesh& mesh, uint64_t axes) {
    const uint64_t object = object_number(mesh);
    for (size_t i = 0; i < entries_.size(); ++i) {
      if (entries_[i].object != object || entries_[i].axes != axes) continue;
      if (i < kFirst) return *entries_[i].state;
      // Programs that make up names of meshes leave many behind: the last ones used come first.
      Entry& first = entries_[next_++ % kFirst];
      std::swap(entries_[i], first);
      return *first.state;
    }
    return of_new_object(mesh, axes, object);
  }

  template <class Visit>
  void for_each(const Visit& visit) {
    for (Entry& entry : entries_) visit(*entry.state);
  }

 private:
  struct Entry {
    uint64_t object;  // the last one of this value
    uint64_t axes;
    std::weak_ptr<const World> world;
    std::string mesh;
    std::unique_ptr<State> state;  // stays where it is while `visit` frees tensors
  };
  static constexpr size_t kFirst = 8;

  State& of_new_object(const DeviceMesh& mesh, uint64_t axes, uint64_t object) {
    const std::shared_ptr<const World>& world = mesh.world();
    std::string text = mesh.to_text();
    for (Entry& entry : entries_) {
      if (entry.axes != axes || entry.mesh != text || !is_same(entry.world, world)) continue;
      entry.object = object;
      return *entry.state;
    }
    std::erase_if(entries_, [](const Entry& entry) { return entry.world.expired(); });
    entries_.push_back({object, axes, world, std::move(text), std::make_unique<State>()});
    return *entries_.back().state;
  }

  /// Unlike addresses, also tells a world from an earlier one that was freed.
  static bool is_same(const std::weak_ptr<const World>& a, const std::shared_ptr<const World>& b) {
    return b != nullptr && !a.owner_before(b) && !b.owner_before(a);
  }

  std::vector<Entry> entries_;
  size_t next_ = 0;
};

}  // namespace tessera
