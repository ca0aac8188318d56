// Which rows rules offer: existing handlers, flags that are set, and the generation counter.
#include <atomic>
#include <mutex>
#include <set>
#include <string>

#include "tessera/base/errors.h"
#include "tessera/cost/machine.h"
#include "tessera/rules/rule.h"

namespace tessera::rules {
namespace {

struct Handlers {
  std::mutex mutex;
  std::set<std::string, std::less<>> names;
  std::set<std::string, std::less<>> flags = {"sequence"};
};
Handlers& handlers() {
  static auto* made = new Handlers();
  return *made;
}

constinit std::atomic<uint64_t> generations{0};

}  // namespace

uint64_t generation() {
  return generations.load(std::memory_order_relaxed) + cost::default_machine_version();
}

void next_generation() { ++generations; }

void enable_handler(std::string_view name) {
  std::lock_guard lock(handlers().mutex);
  handlers().names.emplace(name);
  ++generations;
}
void set_flag(std::string_view name, bool on) {
  require(name == "sequence", "there is no flag '", name, "' of rules; there is sequence");
  std::lock_guard lock(handlers().mutex);
  if (on) {
    handlers().flags.emplace(name);
  } else {
    handlers().flags.erase(std::string(name));
  }
  ++generations;
}
bool flag_set(std::string_view name) {
  std::lock_guard lock(handlers().mutex);
  return handlers().flags.contains(name);
}
std::string_view handler_name(std::string_view name) {
  std::lock_guard lock(handlers().mutex);
  const auto it = handlers().names.find(name);
  return it == handlers().names.end() ? std::string_view() : std::string_view(*it);
}
bool handler_enabled(std::string_view name) {
  std::lock_guard lock(handlers().mutex);
  return handlers().names.contains(name);
}

}  // namespace tessera::rules
