#include "tessera/comm/world_end.h"

#include <mutex>
#include <vector>

namespace tessera::comm {
namespace {

struct Listeners {
  std::mutex mutex;
  std::vector<std::function<void(const World&)>> all;
};

Listeners& listeners() {
  static auto* instance = new Listeners();  // worlds may end after static destruction
  return *instance;
}

}  // namespace

void on_world_end(std::function<void(const World&)> forget) {
  std::lock_guard lock(listeners().mutex);
  listeners().all.push_back(std::move(forget));
}

void announce_world_end(const World& world) {
  std::vector<std::function<void(const World&)>> all;
  {
    std::lock_guard lock(listeners().mutex);
    all = listeners().all;
  }
  for (const auto& forget : all) forget(world);
}

}  // namespace tessera::comm
