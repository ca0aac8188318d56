#include "tests/support/memory_store.h"

#include <c10/util/Exception.h>

#include <algorithm>

#include "tessera/base/text.h"

namespace tessera::testing {
namespace {

/// As in c10d's TCPStore: the default timeout of blocking calls.
constexpr auto kGetTimeout = std::chrono::minutes(5);

[[noreturn]] void broken(const std::string& request) {
  TORCH_CHECK_WITH(DistNetworkError, false, "memory store: the connection is broken: ", request);
}

}  // namespace

/// One direction between the client and the host.
void MemoryStore::travel(const std::string& request) {
  Simulation& simulation = host_->simulation;
  const auto& faults = host_->faults;
  simulation.step();
  if (faults.most_delay_ms > 0) {
    simulation.sleep_for(
        std::chrono::milliseconds(simulation.rng().between(0, faults.most_delay_ms)));
  }
  const auto answers = [&](comm::Schedule::Clock::duration) {
    return host_->state != StoreHost::State::silent || simulation.is_over();
  };
  simulation.wait(answers, Simulation::kForever);
  broken_ = broken_ || host_->state != StoreHost::State::up || simulation.is_over() ||
            simulation.rng().between(1, 1000) <= faults.lost_per_mille;
  if (broken_) broken(request);
}

template <typename Act>
auto MemoryStore::request(const char* what, const std::string& key, Act act) -> decltype(act()) {
  const std::string request = join_text(what, " ", key);
  travel(request);
  if (host_->before) host_->before(request);
  auto answer = act();
  travel(request);
  return answer;
}

bool MemoryStore::has(const std::vector<std::string>& keys) const {
  return std::ranges::all_of(keys,
                             [&](const std::string& key) { return host_->values.contains(key); });
}

c10::intrusive_ptr<c10d::Store> MemoryStore::clone() {
  return c10::make_intrusive<MemoryStore>(host_);
}

void MemoryStore::set(const std::string& key, const std::vector<uint8_t>& value) {
  request("set", key, [&] { return host_->values[key] = value, true; });
}

std::vector<uint8_t> MemoryStore::compareSet(const std::string& key,
                                             const std::vector<uint8_t>& expected,
                                             const std::vector<uint8_t>& desired) {
  return request("compareSet", key, [&] {
    const auto found = host_->values.find(key);
    const bool matches =
        found == host_->values.end() ? expected.empty() : found->second == expected;
    if (matches) host_->values[key] = desired;
    return found == host_->values.end() && !matches ? expected : host_->values[key];
  });
}

std::vector<uint8_t> MemoryStore::get(const std::string& key) {
  wait({key}, kGetTimeout);
  return request("get", key, [&] { return host_->values[key]; });
}

int64_t MemoryStore::add(const std::string& key, int64_t value) {
  return request("add", key, [&] {
    auto& bytes = host_->values[key];
    const int64_t before = bytes.empty() ? 0 : std::stoll(std::string(bytes.begin(), bytes.end()));
    const std::string after = std::to_string(before + value);
    bytes.assign(after.begin(), after.end());
    return before + value;
  });
}

bool MemoryStore::deleteKey(const std::string& key) {
  return request("deleteKey", key, [&] { return host_->values.erase(key) > 0; });
}

bool MemoryStore::check(const std::vector<std::string>& keys) {
  return request("check", keys.empty() ? "" : keys[0], [&] { return has(keys); });
}

int64_t MemoryStore::getNumKeys() {
  return request("getNumKeys", "", [&] { return std::ssize(host_->values); });
}

void MemoryStore::wait(const std::vector<std::string>& keys) { wait(keys, timeout_); }

void MemoryStore::wait(const std::vector<std::string>& keys,
                       const std::chrono::milliseconds& timeout) {
  Simulation& simulation = host_->simulation;
  const bool came = request("wait", keys.empty() ? "" : keys[0], [&] {
    const auto ended = [&](comm::Schedule::Clock::duration) {
      return has(keys) || host_->state == StoreHost::State::gone || simulation.is_over();
    };
    return simulation.wait(ended, timeout);
  });
  TORCH_CHECK_WITH(DistStoreError, came, "memory store: wait timeout after ", timeout.count(),
                   "ms");
}

std::vector<std::vector<uint8_t>> MemoryStore::multiGet(const std::vector<std::string>& keys) {
  std::vector<std::vector<uint8_t>> values;
  for (const auto& key : keys) values.push_back(get(key));
  return values;
}

}  // namespace tessera::testing
