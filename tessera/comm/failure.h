#pragma once

#include <span>
#include <string_view>
#include <utility>

#include "tessera/base/api.h"
#include "tessera/base/errors.h"

/// Failure reporting. When a rank fails, the others are notified immediately: their collectives
/// with this rank end with errors that say "rank 1 failed first: ...".
///
///   or_report(*world, [&] { train(world); });
///   report_failure("the disk is full");            // of this process's world, from anywhere
///
/// An uncaught exception is reported automatically: process_world() installs a
/// std::terminate_handler that chains to the previous one. So is an exit with a non-zero status
/// while the world is open. The process that hosts the store then stays alive for a few seconds,
/// until the others have read the reason. Best effort, for processes; thread ranks are handled by
/// run_ranks. A process forked from a rank reports nothing.
namespace tessera::comm {

class RankWorld;

/// Posts why this rank failed and closes its connections. The world can no longer communicate.
TESSERA_API void report_failure(RankWorld& world, std::string_view why);

/// The same for this process's world (process_world()); no effect if there is none.
TESSERA_API void report_failure(std::string_view why);

/// From now on std::terminate first reports the uncaught exception, and an exit with an error
/// reports its status. Idempotent; called by process_world().
TESSERA_API void report_endings();

/// Closes this rank's connections without posting a reason: for a rank that fails because a peer
/// did.
TESSERA_API void close_links(RankWorld& world);
TESSERA_API void close_links();  ///< of this process's world

/// Throws PeerError that names those of `ranks` whose process was killed, is stopped or has ended;
/// returns if all are alive. For waits that exchange no messages, which would otherwise last until
/// their timeout. Takes some milliseconds, with silent ranks a few seconds. Ranks of this process
/// (threads) end together and are not checked.
TESSERA_API void require_alive(RankWorld& world, std::span<const int> ranks);

/// Runs `body`. If it throws, reports the failure to the other ranks and rethrows.
template <typename Body>
decltype(auto) or_report(RankWorld& world, Body&& body) {
  try {
    return std::forward<Body>(body)();
  } catch (const PeerError&) {
    close_links(world);
    throw;
  } catch (const std::exception& e) {
    report_failure(world, e.what());
    throw;
  } catch (...) {
    report_failure(world, "an exception that is not a std::exception");
    throw;
  }
}

}  // namespace tessera::comm
