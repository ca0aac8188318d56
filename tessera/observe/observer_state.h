#pragma once

#include <c10/util/intrusive_ptr.h>
#include <unistd.h>

#include <atomic>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <vector>

#include "tessera/observe/event_log.h"

/// State shared by the taps of one rank.
namespace tessera::comm {

class CollectiveCheck;
class PeerDiagnostics;

struct ObserverState {
  /// The number of recorders, plus kChecked in checked mode: the only word that a tap reads in the
  /// common case.
  static constexpr uint32_t kChecked = 1u << 31;
  std::atomic<uint32_t> active{0};

  /// This rank saw or caused a failure; its world then skips the shutdown barrier.
  std::atomic<bool> failed{false};

  const pid_t owner = getpid();  ///< a forked child must not close its connections
  bool hosts_store = false;
  bool is_ours() const { return getpid() == owner; }

  std::mutex mutex;  // guards what follows
  std::vector<std::shared_ptr<EventLog>> logs;
  std::shared_ptr<CollectiveCheck> check;  ///< null: this kind of world needs none
  std::shared_ptr<PeerDiagnostics> board;  ///< null: not processes
  std::vector<c10::weak_intrusive_ptr<c10d::Backend>> backends;  ///< behind the taps
  std::map<std::string, int> taps_of_group;

  /// Adds a tap on a backend of this group. Returns a name for its calls, equal on every rank
  /// because ranks create the backends of a group in the same order.
  std::string add_tap(const std::string& group, const c10::intrusive_ptr<c10d::Backend>& backend) {
    std::lock_guard lock(mutex);
    backends.emplace_back(backend);
    return group + "#" + std::to_string(taps_of_group[group]++);
  }

  std::shared_ptr<PeerDiagnostics> board_now() {
    std::lock_guard lock(mutex);
    return board;
  }

  /// This rank's connections are closed: pending calls on them cannot complete.
  std::atomic<bool> aborted{false};

  /// Closes every connection of this rank, which wakes peers that wait for it.
  void abort_links() {
    if (!is_ours()) return;
    aborted = true;
    std::vector<c10::weak_intrusive_ptr<c10d::Backend>> all;
    {
      std::lock_guard lock(mutex);
      all = backends;
    }
    for (auto& weak : all) {
      if (auto backend = weak.lock()) {
        try {
          backend->abort();
        } catch (const std::exception&) {  // the next one may still be open
        }
      }
    }
  }
};

}  // namespace tessera::comm
