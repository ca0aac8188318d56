#include "tessera/comm/failure.h"

#include <c10/util/Exception.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <exception>
#include <mutex>

#include "tessera/comm/processes.h"
#include "tessera/comm/world.h"
#include "tessera/liveness/peer_diagnostics.h"
#include "tessera/observe/observer_state.h"

namespace tessera::comm {

void report_failure(RankWorld& world, std::string_view why) {
  if (!world.observers().state()->is_ours()) return;  // in a forked child, which is not the rank
  // First the reason, then the closed connections that make peers look for it.
  if (const auto board = world.observers().state()->board_now()) board->post_failure(why);
  close_links(world);
}

void close_links(RankWorld& world) {
  ObserverState& state = *world.observers().state();
  state.failed = true;
  state.abort_links();
}

void require_alive(RankWorld& world, std::span<const int> ranks) {
  const auto board = world.observers().state()->board_now();
  if (board == nullptr || ranks.empty()) return;
  const auto probed = board->probe(ranks);
  if (!probed) return;  // the store is gone: collectives find out why
  if (!probed->left.empty()) {
    throw PeerError(join_text("rank ", world.rank(), ": ", board->ranks_with_hosts(probed->left),
                              " left the world"));
  }
  if (!probed->missing.empty()) {
    throw PeerError(join_text("rank ", world.rank(), ": ", board->ranks_with_hosts(probed->missing),
                              " did not answer: killed, stopped or disconnected"));
  }
}

void close_links() {
  if (const auto world = process_world_if_any()) close_links(*world);
}

void report_failure(std::string_view why) {
  if (const auto world = process_world_if_any()) report_failure(*world, why);
}

namespace {

std::terminate_handler previous_handler = nullptr;

/// For a process that exits without closing its world: a store hosted here ends with it.
void wait_for_readers() {
  const auto world = process_world_if_any();
  if (world == nullptr || world->size() == 1) return;
  ObserverState& state = *world->observers().state();
  const auto board = state.is_ours() ? state.board_now() : nullptr;
  if (board != nullptr) board->post_exit(world->size() - 1, state.hosts_store);
}

[[noreturn]] void report_and_terminate() {
  static std::atomic<bool> reporting{false};
  if (!reporting.exchange(true)) {
    try {
      if (std::current_exception()) throw;
    } catch (const PeerError&) {  // the others know already, or learn it the same way
      close_links();
    } catch (const c10::Error& e) {
      report_failure(e.what_without_backtrace());
    } catch (const std::exception& e) {
      report_failure(e.what());
    } catch (...) {
      report_failure("an exception that is not a std::exception");
    }
    wait_for_readers();
  }
  if (previous_handler != nullptr) previous_handler();
  std::abort();
}

/// Peers of a rank that exits with an error would wait for it as if it had ended normally. A forked
/// child shares its connections, which it must not close.
void report_exit(int status, void* reporter) {
  if (status == 0 || getpid() != static_cast<pid_t>(reinterpret_cast<intptr_t>(reporter))) return;
  const auto world = process_world_if_any();
  if (world == nullptr || world->size() == 1) return;
  if (world->observers().state()->failed) return close_links(*world);  // another rank failed
  report_failure(*world, join_text("it exited with status ", status));
}

}  // namespace

void report_endings() {
  static std::once_flag once;
  std::call_once(once, [] {
    previous_handler = std::set_terminate(report_and_terminate);
    on_exit(report_exit, reinterpret_cast<void*>(static_cast<intptr_t>(getpid())));
  });
}

}  // namespace tessera::comm
