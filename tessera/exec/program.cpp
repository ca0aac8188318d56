#include "tessera/exec/program.h"

#include "tessera/base/pair_cache.h"
#include "tessera/comm/world_end.h"

namespace tessera::exec {
namespace {

PairCache<Sharding, Program>& the_cache();

/// Cached programs and plans would keep their world alive.
void forget(const World& world) {
  the_cache().erase_if([&](const Sharding& from, const Sharding& to) {
    return from.mesh().world().get() == &world || to.mesh().world().get() == &world;
  });
  plan::forget_plans(&world);
}

PairCache<Sharding, Program>& the_cache() {
  // Never destroyed, see mesh_table().
  static auto* cache = [] {
    comm::on_world_end(forget);
    return new PairCache<Sharding, Program>(16'384);
  }();
  return *cache;
}

}  // namespace

std::shared_ptr<const Program> cached_program(const Sharding& from, const Sharding& to) {
  return the_cache().get(from, to, cost::default_machine_version(),
                         [&] { return compile(*plan::cached_plan(from, to)); });
}

size_t cached_programs() { return the_cache().size(); }

void clear_programs() { the_cache().clear(); }

}  // namespace tessera::exec
