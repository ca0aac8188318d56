#include "tessera/liveness/world_shutdown.h"

#include <algorithm>

#include "tessera/base/iota_vector.h"
#include "tessera/liveness/call_with_timeout.h"
#include "tessera/liveness/peer_diagnostics.h"
#include "tessera/liveness/poll.h"
#include "tessera/liveness/store_barrier.h"

namespace tessera::comm {
namespace {

using std::chrono::milliseconds;

constexpr auto kFinalMessages = milliseconds(500);
/// Additional time for a slow store.
constexpr auto kSlowStore = std::chrono::seconds(3);

}  // namespace

WorldShutdown::WorldShutdown(Options options)
    : options_(std::move(options)), everyone_(iota_vector<int>(options_.size)) {}

WorldShutdown::BarrierResult WorldShutdown::arrive_and_wait() {
  return call_with_timeout(
      options_.patience + kSlowStore, BarrierResult::none, [self = shared_from_this()] {
        const Options& mine = self->options_;
        try {
          StoreBarrier{*mine.store, "shutdown",    "the shutdown", self->everyone_,
                       mine.rank,   mine.patience, *mine.board}
              .arrive_and_wait("");
          return BarrierResult::all_came;
        } catch (const std::exception&) {  // a rank is already gone: leave as well
          return BarrierResult::some_did_not;
        }
      });
}

WorldShutdown::BarrierResult WorldShutdown::cancel_barrier() {
  return call_with_timeout(kSlowStore, BarrierResult::none, [self = shared_from_this()] {
    const Options& mine = self->options_;
    StoreBarrier{*mine.store, "shutdown",    "the shutdown", self->everyone_,
                 mine.rank,   mine.patience, *mine.board}
        .cancel();
    return BarrierResult::some_did_not;
  });
}

void WorldShutdown::leave(std::vector<int> silent) {
  // Each may take as long as a probe in addition to its own wait.
  const auto limit = options_.hosts_store ? options_.patience + 3 * LivenessProbe::kLongest
                                          : milliseconds(3 * kSlowStore);
  call_with_timeout(limit, false,
                    [self = shared_from_this(), silent = std::move(silent)]() mutable {
                      self->options_.probe.reset();
                      self->options_.store->add(StoreBarrier::kLeft, 1);
                      if (self->options_.hosts_store) self->wait_for_others(std::move(silent));
                      return true;
                    });
}

/// A rank that is merely too busy to answer one probe still reads why this one failed: only a rank
/// that misses two in a row counts as dead. Those that stay longer are notified that the store
/// ends.
void WorldShutdown::wait_for_others(std::vector<int> silent) {
  c10d::Store& board = *options_.board;
  const auto deadline = Schedule::current().now() + options_.patience;
  const auto all_left = [&] {
    return options_.store->add(StoreBarrier::kLeft, 0) >= options_.size;
  };
  // A rank that reported its own failure does not read any more: one missed probe suffices.
  if (const auto failed = PeerDiagnostics::first_failure(board)) silent.push_back(failed->rank);
  while (!poll_until(kFinalMessages, all_left)) {
    if (Schedule::current().now() >= deadline) {
      LivenessProbe::dismiss(board, everyone_);
      return;
    }
    const auto probed = LivenessProbe::call(board, everyone_);
    const auto dead = std::ranges::count_if(
        probed.missing, [&](int rank) { return std::ranges::count(silent, rank) > 0; });
    if (dead + std::ssize(probed.left) == options_.size) return;
    silent = probed.missing;
  }
}

}  // namespace tessera::comm
