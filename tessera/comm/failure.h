#pragma once

#include <string_view>
#include <utility>

#include "tessera/base/errors.h"

/// When a rank fails by itself, the others learn of it at once: their collectives with this rank
/// end, and the errors say "rank 1 failed first: ...".
///
///   or_report(*world, [&] { train(world); });
///   report_failure("the disk is full");            // of this process's world, from anywhere
///
/// An exception that nobody catches is reported by itself: process_world() sets a
/// std::terminate_handler, which goes on to the one that was there. So is an exit with another
/// status than 0, while the world is open. The process that hosts the store then stays a few
/// seconds, until the others have read why. Best effort, for processes; thread ranks are told by
/// run_ranks. A process that was forked from a rank reports nothing.
namespace tessera::comm {

class RankWorld;

/// Posts why this rank cannot go on and closes its links. The world can communicate no more.
void report_failure(RankWorld& world, std::string_view why);

/// The same for this process's own world (process_world()); nothing if there is none.
void report_failure(std::string_view why);

/// From now on std::terminate reports the exception that nobody caught, first of all, and an exit
/// with an error reports its status. Once is enough; process_world() does it.
void report_endings();

/// Closes this rank's links without a reason of its own: for one that fails because a peer did.
void close_links(RankWorld& world);
void close_links();  ///< of this process's own world

/// Runs `body`. If it throws, tells the other ranks and lets the exception pass.
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
  }
}

}  // namespace tessera::comm
