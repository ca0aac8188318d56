#include "tessera/exec/program.h"

#include <algorithm>

#include "tessera/base/pair_cache.h"
#include "tessera/comm/world_end.h"

namespace tessera::exec {
namespace {

void forget(const World& world) {
  forget_programs(&world);
  plan::forget_plans(&world);
}

PairCache<Program>& the_cache() {
  // Never destroyed, see mesh_table().
  static auto* cache = [] {
    comm::on_world_end(forget);
    return new PairCache<Program>(16'384);
  }();
  return *cache;
}

}  // namespace

Program::Program(Sharding from, Sharding to, std::vector<Action> actions)
    : from_(std::move(from)),
      to_(std::move(to)),
      actions_(std::move(actions)),
      communicates_(std::ranges::any_of(
          actions_, [](const Action& action) { return action.group != nullptr; })) {}

std::shared_ptr<const Program> cached_program(const Sharding& from, const Sharding& to) {
  return the_cache().get(from.id(), to.id(), cost::default_machine_version(),
                         [&] { return compile(*plan::cached_plan(from, to)); });
}

void forget_programs(const World* world) {
  the_cache().erase_if(
      [&](const Program& program) { return program.from().mesh().world().get() == world; });
}

void clear_program_cache() { the_cache().clear(); }

size_t cached_programs() { return the_cache().size(); }

}  // namespace tessera::exec
