// Which rows rules offer: existing kernels, flags that are set, and the generation counter.
#include <atomic>
#include <map>
#include <mutex>
#include <set>
#include <string>

#include "tessera/base/errors.h"
#include "tessera/cost/machine.h"
#include "tessera/rules/rule.h"

namespace tessera::rules {
namespace {

struct Offers {
  std::mutex mutex;
  std::map<std::string, EnabledKernel, std::less<>> kernels;
  std::set<std::string, std::less<>> flags = {"sequence"};
};
Offers& offers() {
  static auto* made = new Offers();
  return *made;
}

constinit std::atomic<uint64_t> generations{0};

}  // namespace

uint64_t generation() {
  return generations.load(std::memory_order_relaxed) + cost::default_machine_version();
}

void next_generation() { ++generations; }

void enable_kernel(std::string_view name, KernelComm comm, KernelRows rows) {
  std::lock_guard lock(offers().mutex);
  const auto at = offers().kernels.try_emplace(std::string(name)).first;
  at->second = {at->first, comm, std::move(rows)};
  ++generations;
}
const EnabledKernel* find_kernel(std::string_view name) {
  std::lock_guard lock(offers().mutex);
  const auto at = offers().kernels.find(name);
  return at == offers().kernels.end() ? nullptr : &at->second;
}
void set_flag(std::string_view name, bool on) {
  require(name == "sequence", "there is no flag '", name, "' of rules; there is sequence");
  std::lock_guard lock(offers().mutex);
  if (on) {
    offers().flags.emplace(name);
  } else {
    offers().flags.erase(std::string(name));
  }
  ++generations;
}
bool flag_set(std::string_view name) {
  std::lock_guard lock(offers().mutex);
  return offers().flags.contains(name);
}

}  // namespace tessera::rules
