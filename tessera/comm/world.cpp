#include "tessera/comm/world.h"

#include <algorithm>
#include <condition_variable>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include "tessera/base/errors.h"
#include "tessera/base/ranks_text.h"
#include "tessera/collective/group_info.h"
#include "tessera/collective/may_block.h"
#include "tessera/comm/processes.h"
#include "tessera/observe/recorder.h"
#include "tessera/observe/tap.h"
#include "tessera/threads/thread_backend.h"

namespace tessera::comm {
namespace {

thread_local std::shared_ptr<RankWorld> entered;

Backends on_all_devices(const c10::intrusive_ptr<c10d::Backend>& backend) {
  Backends backends;
  for (const auto device : all_device_types()) backends.emplace_back(device, backend);
  return backends;
}

/// Shared by all worlds: creating a group is rare.
std::condition_variable_any& group_made() {
  static auto* instance = new std::condition_variable_any();  // worlds may outlive static objects
  return *instance;
}

}  // namespace

RankWorld::RankWorld(Kind kind, int rank, int size, std::string name,
                     std::chrono::milliseconds timeout)
    : kind_(kind),
      rank_(rank),
      size_(size),
      name_(std::move(name)),
      timeout_(timeout),
      observers_(std::make_unique<Observers>(rank)) {
  require(size >= 1 && rank >= 0 && rank < size, "world ", name_, ": rank ", rank, " of ", size);
}

RankWorld::~RankWorld() = default;

std::string RankWorld::group_name(std::span<const int> ranks) const {
  return join_text(name_, ".g[", ranks_text(ranks), "]");
}

std::vector<int> RankWorld::checked_ranks(std::span<const int> ranks) const {
  std::vector<int> key(ranks.begin(), ranks.end());
  require(std::ranges::find(key, rank_) != key.end(), "rank ", rank_,
          " asked for the group of ranks ", ranks_text(key), ", which it is not in");
  auto sorted = key;
  std::ranges::sort(sorted);
  require(std::ranges::adjacent_find(sorted) == sorted.end(), "a rank twice in the group of ranks ",
          ranks_text(key));
  require(sorted.front() >= 0 && sorted.back() < size_, "the group of ranks ", ranks_text(key),
          " does not fit a world of ", size_);
  return key;
}

std::shared_ptr<const Group> RankWorld::group(std::span<const int> ranks) {
  std::vector<int> key(ranks.begin(), ranks.end());
  {
    std::lock_guard lock(mutex_);
    const auto it = groups_.find(key);
    if (it != groups_.end() && it->second != nullptr) return it->second;
  }
  key = checked_ranks(ranks);
  const MayBlock others_may_run;  // outside the lock: no host lock may be taken while holding ours
  std::unique_lock lock(mutex_);
  // The lock is not held while a group is created, because that waits for other ranks, whose
  // threads may create their groups in another order. An entry without a group is being created.
  const auto ended = [&] { return !groups_.contains(key) || groups_[key] != nullptr; };
  group_made().wait(lock, ended);
  if (const auto it = groups_.find(key); it != groups_.end()) return it->second;
  groups_.emplace(key, nullptr);
  lock.unlock();
  std::shared_ptr<const Group> made;
  std::exception_ptr error;
  try {
    const int index = static_cast<int>(std::ranges::find(key, rank_) - key.begin());
    // One rank needs no connections, whatever the kind of world.
    auto backends = key.size() == 1 && kind_ != Kind::fake
                        ? on_all_devices(solo_backend())
                        : make_backends(key, index, group_name(key));
    made = make_group(key, std::move(backends));
  } catch (...) {
    error = std::current_exception();
  }
  lock.lock();
  if (error) {
    groups_.erase(key);
  } else {
    groups_[key] = made;
  }
  lock.unlock();
  group_made().notify_all();
  if (error) std::rethrow_exception(error);
  return made;
}

void RankWorld::adopt(std::span<const int> ranks,
                      const c10::intrusive_ptr<c10d::ProcessGroup>& existing) {
  std::lock_guard lock(mutex_);
  auto key = checked_ranks(ranks);
  require(existing != nullptr, "adopt: no process group for ranks ", ranks_text(key));
  const int index = static_cast<int>(std::ranges::find(key, rank_) - key.begin());
  require(existing->getSize() == static_cast<int>(key.size()) && existing->getRank() == index,
          "the process group \"", existing->getGroupName(), "\" has size ", existing->getSize(),
          " and my rank in it is ", existing->getRank(), "; the group of ranks ", ranks_text(key),
          " has size ", key.size(), " and I am number ", index, " of it");
  if (groups_.contains(key)) return;  // already exists or is being created, and may be referenced
  Backends backends;
  for (const auto device : existing->getDeviceTypes()) {
    backends.emplace_back(device.type(), existing->getBackend(device.type()));
  }
  auto made = make_group(key, std::move(backends));
  groups_.emplace(std::move(key), std::move(made));
}

std::shared_ptr<const Group> RankWorld::make_group(std::vector<int> ranks, Backends backends) {
  require(!backends.empty(), "world ", name_, " serves no device");
  const int index = static_cast<int>(std::ranges::find(ranks, rank_) - ranks.begin());
  const std::string name = group_name(ranks);
  // A backend that serves several devices gets one tap.
  std::map<c10d::Backend*, c10::intrusive_ptr<c10d::Backend>> taps;
  for (auto& [device, backend] : backends) {
    auto& tapped = taps[backend.get()];
    if (!tapped) tapped = tap(backend, GroupInfo{ranks, index, name, name_}, *observers_);
    backend = tapped;
  }
  return std::make_shared<const Group>(std::move(ranks), index, name, backends);
}

std::shared_ptr<RankWorld> current_world() { return entered ? entered : process_world(); }

std::shared_ptr<RankWorld> entered_world() { return entered; }

WorldGuard::WorldGuard(std::shared_ptr<RankWorld> world)
    : previous_(std::exchange(entered, std::move(world))) {}

WorldGuard::~WorldGuard() { entered = std::move(previous_); }

}  // namespace tessera::comm
