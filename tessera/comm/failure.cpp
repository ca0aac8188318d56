#include "tessera/comm/failure.h"

#include <c10/util/Exception.h>

#include <atomic>
#include <cstdlib>
#include <exception>
#include <mutex>

#include "tessera/comm/noticeboard.h"
#include "tessera/comm/observer_state.h"
#include "tessera/comm/processes.h"
#include "tessera/comm/world.h"

namespace tessera::comm {

void report_failure(RankWorld& world, std::string_view why) {
  // First the reason, then the closed links that make peers look for it.
  if (const auto board = world.observers().state()->board_now()) board->post_failure(why);
  close_links(world);
}

void close_links(RankWorld& world) {
  ObserverState& state = *world.observers().state();
  state.failed = true;
  state.abort_links();
}

void report_failure(std::string_view why) {
  if (const auto world = process_world_if_any()) report_failure(*world, why);
}

namespace {

std::terminate_handler previous_handler = nullptr;

[[noreturn]] void report_and_terminate() {
  static std::atomic<bool> reporting{false};
  if (!reporting.exchange(true)) {
    try {
      if (std::current_exception()) throw;
    } catch (const PeerError&) {  // the others know already, or learn it the same way
      if (const auto world = process_world_if_any()) close_links(*world);
    } catch (const c10::Error& e) {
      report_failure(e.what_without_backtrace());
    } catch (const std::exception& e) {
      report_failure(e.what());
    } catch (...) {
      report_failure("an exception that is not a std::exception");
    }
  }
  if (previous_handler != nullptr) previous_handler();
  std::abort();
}

}  // namespace

void report_uncaught() {
  static std::once_flag once;
  std::call_once(once, [] { previous_handler = std::set_terminate(report_and_terminate); });
}

}  // namespace tessera::comm
